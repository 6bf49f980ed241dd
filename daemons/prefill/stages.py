"""The stages of a prefill, and which rooms are in each.

A room is in one stage, or over (``ending``) while a write or a forward of it is under way. Who
takes it out of a stage puts it into the next one, and tells the recorder, which holds it to
``STEPS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from daemons.prefill.bootstrap_queue import BootstrapQueue
from daemons.prefill.inflight_queue import InflightQueue
from daemons.prefill.request import Request
from daemons.prefill.waiting_queue import WaitingQueue
from daemons.protocol.ids import RoomKey

STEPS = {
    "": frozenset({"bootstrap"}),
    "bootstrap": frozenset({"waiting", ""}),
    "waiting": frozenset({"forward", ""}),
    "forward": frozenset({"inflight", ""}),
    "inflight": frozenset({""}),
}


@dataclass(slots=True)
class Stages:
    """All rooms that are here; those in forward are the waiting queue's begun ones."""

    bootstrap: BootstrapQueue
    waiting: WaitingQueue
    inflight: InflightQueue
    ending: dict[RoomKey, Request] = field(default_factory=dict)

    def rooms(self) -> list[Request]:
        """Return the rooms that have not ended, by stage."""
        return list(chain.from_iterable(stage.values() for stage in self._in_order()))

    def get(self, key: RoomKey) -> Request | None:
        """Return a room that has not ended."""
        return next((stage[key] for stage in self._in_order() if key in stage), None)

    def take_out(self, key: RoomKey) -> None:
        """Take a room out of its stage."""
        for stage in self._in_order():
            stage.pop(key, None)

    def _in_order(self) -> tuple[dict[RoomKey, Request], ...]:
        return self.bootstrap.rooms, self.waiting.rooms, self.waiting.begun, self.inflight.rooms
