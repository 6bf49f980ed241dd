"""Decode, stage 1 of 4: a room waits for its prefill to be known and for memory of its own.

A room gets memory only when everything it may ever need is free and promised to nobody else: so
rooms that wait for bytes can never squeeze those that run. First come, first served among the
rooms whose prefill is ready; a prefill that cannot be found holds up nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.decode.prefills import Prefills
from daemons.decode.request import Request
from daemons.kv.ledger import Ledger, Owner
from daemons.kv.runs import pages_for
from daemons.protocol.ids import RoomKey


@dataclass(slots=True)
class PreallocQueue:
    """Rooms without memory."""

    page_size: int
    rooms: dict[RoomKey, Request] = field(default_factory=dict)

    def admit(
        self, pages: Ledger, rows: Ledger, promised: int, prefills: Prefills
    ) -> list[Request]:
        """Give memory to rooms in order until one does not fit; return those that got it.

        ``promised`` is how many free pages belong to rooms that were admitted before.
        """
        admitted: list[Request] = []
        for key, request in list(self.rooms.items()):
            peer = prefills.ready(request.submit.prefill)
            if peer is None:
                continue
            if request.need_pages > pages.free - promised or rows.free == 0:
                break
            count = pages_for(len(request.submit.prompt), self.page_size)
            request.pages = list(pages.take(key, count, Owner.WRITER))
            (request.row,) = rows.take(key, 1, Owner.WRITER)
            request.peer = peer
            promised += request.promised
            admitted.append(self.rooms.pop(key))
        return admitted
