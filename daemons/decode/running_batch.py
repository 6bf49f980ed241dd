"""Decode, stage 4 of 4: one token per room and step, until something ends the text."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.decode.request import Request
from daemons.engine.step import Item
from daemons.kv.ledger import Ledger, Owner
from daemons.kv.runs import pages_for
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
        if len(needy) <= pages.free:
            return []
        needy.sort(key=lambda request: (-len(request.output), request.submitted_s, request.key))
        return needy[pages.free :]

    def step(self, pages: Ledger) -> list[Item]:
        """Return the next step of every room that is not short of a page, which it takes."""
        items: list[Item] = []
        short = {request.key for request in self.short(pages)}
        for key, request in self.rooms.items():
            if key in short:
                continue
            if self._lacks(request):
                request.pages += pages.take(key, 1, Owner.REQUEST)
            request.in_step = True
            item = Item(
                key, (request.output[-1],), request.position, tuple(request.pages), samples=True
            )
            items.append(item)
        return items

    def _lacks(self, request: Request) -> bool:
        return pages_for(request.position + 1, self.page_size) > len(request.pages)


def finish_of(request: Request) -> tuple[FinishReason | None, int | None]:
    """Return why the newest token ends the text, and the token if it is the reason."""
    newest, sampling = request.output[-1], request.submit.sampling
    if newest in sampling.ending_token_ids:
        return FinishReason.STOP, newest
    if len(request.output) >= sampling.max_tokens:
        return FinishReason.LENGTH, None
    return None, None
