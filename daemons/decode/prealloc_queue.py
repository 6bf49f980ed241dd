"""Decode, stage 1 of 4: a room waits for its prefill to be known and for memory of its own.

How much may be promised is the budget's to say. First come, first served by priority and age
among the rooms whose prefill is ready, and a room that does not fit is not overtaken; a prefill
that cannot be found holds up nobody else. A room that is prefilled here needs neither prefill nor
row: its pages are its own from the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.decode.budget import Budget
from daemons.decode.memory import Memory
from daemons.decode.prefills import Prefills
from daemons.decode.request import Request
from daemons.protocol.ids import RoomKey


@dataclass(slots=True)
class PreallocQueue:
    """Rooms without memory."""

    rooms: dict[RoomKey, Request] = field(default_factory=dict)

    def admit(
        self, memory: Memory, budget: Budget, places: int, prefills: Prefills
    ) -> list[Request]:
        """Give memory to rooms in order until one does not fit; return those that got it.

        ``places`` is how many rooms may get it.
        """
        admitted: list[Request] = []
        for key, request in list(self.rooms.items()):
            peer = None if request.local else prefills.ready(request.submit.prefill)
            if peer is None and not request.local:
                continue
            if len(admitted) >= places or memory.lacks(request):
                break
            memory.cache.lease(request)
            if not budget.fits(request):
                memory.cache.end(request)
                break
            memory.reserve(request, budget.prompt_pages(request))
            request.peer = peer
            budget.admitted(request)
            admitted.append(self.rooms.pop(key))
        return admitted
