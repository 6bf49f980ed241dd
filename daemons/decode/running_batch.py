"""Decode, stage 4 of 4: one token per room and step, until something ends the text."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.decode.request import Request
from daemons.engine.step import NEWEST, Item
from daemons.kv.ledger import Ledger, Owner
from daemons.protocol.generate import FinishReason
from daemons.protocol.ids import RoomKey


@dataclass(slots=True)
class RunningBatch:
    """Rooms that are decoded together."""

    page_size: int
    batch_rooms: int
    rooms: dict[RoomKey, Request] = field(default_factory=dict)

    def join(self, waiting: dict[RoomKey, Request], returning: int = 0) -> list[Request]:
        """Take rooms from ``waiting`` in order while there is a place; ``returning`` have one."""
        joined: list[Request] = []
        while waiting and len(self.rooms) + returning < self.batch_rooms:
            key = next(iter(waiting))
            self.rooms[key] = waiting.pop(key)
            joined.append(self.rooms[key])
        return joined

    def short(self, pages: Ledger) -> list[Request]:
        """Return the rooms that cannot have the page they need now; most output goes first.

        A room that steps needs one more page at most.
        """
        needy = [request for request in self.rooms.values() if self._lacks(request)]
        if len(needy) <= pages.available:
            return []
        needy.sort(key=lambda request: (-len(request.output), request.submitted_s, request.key))
        return needy[pages.available :]

    def step(self, pages: Ledger) -> list[Item]:
        """Return the next step of every room that is not short of a page, which it takes.

        A room may have a step under way already: then the engine goes on from what comes of it.
        """
        items: list[Item] = []
        short = {request.key for request in self.short(pages)}
        for key, request in self.rooms.items():
            if key in short or _is_full(request):
                continue
            if self._lacks(request):
                request.pages += pages.take(key, 1, Owner.REQUEST)
            token = NEWEST if request.in_steps else request.output[-1]
            items.append(Item(key, (token,), request.position, request.pages, samples=True))
            request.in_steps += 1
        return items

    def _lacks(self, request: Request) -> bool:
        if request.position < len(request.pages) * self.page_size:
            return False
        return not _is_full(request)


def _is_full(request: Request) -> bool:
    """Say whether what is under way brings a room's last token."""
    return len(request.output) + request.in_steps >= request.submit.sampling.max_tokens


def finish_of(request: Request) -> tuple[FinishReason | None, int | None]:
    """Return why the newest token ends the text, and the token if it is the reason."""
    newest, sampling = request.output[-1], request.submit.sampling
    if newest in sampling.ending_token_ids:
        return FinishReason.STOP, newest
    if len(request.output) >= sampling.max_tokens:
        return FinishReason.LENGTH, None
    return None, None
