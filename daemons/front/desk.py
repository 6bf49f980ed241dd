"""What all endpoints of a front share, and the way from a checked request to its pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from daemons.front.config import FrontConfig
from daemons.front.events import ClientGone, EventStream
from daemons.front.grammars import Grammars
from daemons.front.life import Life
from daemons.front.meetings import Meetings
from daemons.front.metrics import Meter
from daemons.front.model_card import ModelCard
from daemons.front.output import Order, Piece
from daemons.front.rooms import Call, OpenRooms
from daemons.front.validate import Place
from daemons.protocol.generate import AskFor, RankReady, ToRank
from daemons.protocol.topology import Role, State
from daemons.runtime.http import Refusal
from daemons.runtime.phonebook import PhoneBook

CLIENT_GONE_STATUS = 499  # nobody reads it

Events = Callable[[int, Piece], Sequence[object]]


class TalksToRanks(Protocol):
    """The ranks, as endpoints see them."""

    def tell(self, message: ToRank) -> None:
        """Tell all ranks."""

    async def ask(
        self, what: AskFor, room: int = 0, *, within_s: float = 2.0
    ) -> list[dict[str, object]]:
        """Return every rank's answer."""


@dataclass(slots=True)
class Desk:
    """One front, as its endpoints see it."""

    config: FrontConfig
    card: ModelCard
    life: Life
    ranks: TalksToRanks
    book: PhoneBook
    rooms: OpenRooms
    meter: Meter
    started_s: float = 0.0  # monotonic clock
    ready: list[RankReady] = field(default_factory=list)
    grammars: Grammars = field(init=False)  # verdicts on those of clients
    meetings: Meetings = field(init=False)  # for routers that know no names of instances

    def __post_init__(self) -> None:
        self.grammars = Grammars(str(self.card.directory), self.card.vocabulary)
        self.meetings = Meetings(self.book, self.config)

    @property
    def limit(self) -> int:
        """Longest prompt + output, in tokens, that model and pools take."""
        return min([self.card.context_tokens, *(rank.max_tokens for rank in self.ready)])

    def admit(self) -> None:
        """Let a new request in, or refuse it; raises Refusal.

        Of a decode that an operator drains the rank refuses, for it tells prefill not to wait:
        routers that do not end the other leg would else wait for it.
        """
        config, life = self.config, self.life
        asks_rank = config.role is Role.DECODE and life.state is State.DRAINING
        if not asks_rank or life.stopping:
            life.admit()

    async def prefill_of(self, place: Place) -> str:
        """Return who serves the prompt; raises Refusal when the client must say."""
        return place.prefill or await self.meetings.prefill(place.meeting)

    def call(self, orders: Sequence[Order], timeout_s: float) -> Call:
        """Return the rooms of one request, to be entered."""
        self.admit()  # reading and tokenizing may have taken a while
        return Call(orders, self.rooms, self.card.tokenizer, timeout_s)


async def stream(
    request: web.Request,
    call: Call,
    events: Events,
    last: Callable[[], Sequence[object]] = tuple,
    named: Callable[[Refusal], dict[str, object]] = lambda _: {},
) -> web.StreamResponse:
    """Answer with the events that each piece makes, then those of ``last``, then the end mark.

    ``named`` adds to an error event whose error it was.
    """
    out = EventStream(request, call.deadline_s)
    try:
        async with call:
            try:
                async for index, piece in call:
                    for event in events(index, piece):
                        await out.send(event)
                for event in last():
                    await out.send(event)
                return await out.done()
            except Refusal as refusal:
                if out.response is None:
                    raise
                return await out.fail(refusal, **named(refusal))
    except ClientGone:
        return out.response or web.Response(status=CLIENT_GONE_STATUS)
