"""The stages of a decode, and which rooms are in each.

A room is in one stage, or over (``ending``) while the engine still uses its pages. Who takes it out
of a stage puts it into the next one, and tells the recorder, which holds it to ``STEPS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from daemons.decode.forward_queue import ForwardQueue
from daemons.decode.prealloc_queue import PreallocQueue
from daemons.decode.prebuilt import Prebuilt
from daemons.decode.request import Request
from daemons.decode.retracted_queue import RetractedQueue
from daemons.decode.running_batch import RunningBatch
from daemons.decode.transfer_queue import TransferQueue
from daemons.protocol.ids import RoomKey

STEPS = {
    "": frozenset({"prealloc"}),
    "prealloc": frozenset({"transfer", "forward", ""}),
    "transfer": frozenset({"prebuilt", ""}),
    "forward": frozenset({"prebuilt", ""}),
    "prebuilt": frozenset({"running", "retracted", ""}),
    "running": frozenset({"retracted", ""}),
    "retracted": frozenset({"running", ""}),
}


@dataclass(slots=True)
class Stages:
    """All rooms that are here."""

    prealloc: PreallocQueue
    transfer: TransferQueue
    forward: ForwardQueue
    prebuilt: Prebuilt
    running: RunningBatch
    retracted: RetractedQueue
    ending: dict[RoomKey, Request] = field(default_factory=dict)

    def rooms(self) -> list[Request]:
        """Return the rooms that have not ended, by stage."""
        return list(chain.from_iterable(stage.values() for stage in self._in_order()))

    def ours(self) -> list[Request]:
        """Return the rooms whose memory no peer can write."""
        _, _, *stages = self._in_order()
        return list(chain.from_iterable(stage.values() for stage in stages))

    def holders(self) -> list[Request]:
        """Return the rooms that have memory."""
        return [*self.transfer.rooms.values(), *self.ours()]

    def get(self, key: RoomKey) -> Request | None:
        """Return a room that has not ended."""
        return next((stage[key] for stage in self._in_order() if key in stage), None)

    def take_out(self, key: RoomKey) -> None:
        """Take a room out of its stage."""
        for stage in self._in_order():
            stage.pop(key, None)

    @property
    def kept_pages(self) -> int:
        """Pages that the host keeps, or is getting."""
        rooms = chain(self.retracted.rooms.values(), self.ending.values())
        return sum(request.kept for request in rooms)

    def _in_order(self) -> tuple[dict[RoomKey, Request], ...]:
        waiting = self.prealloc.rooms, self.transfer.rooms, self.forward.rooms
        return (*waiting, self.prebuilt.rooms, self.running.rooms, self.retracted.rooms)
