"""The rooms of one request as the balancer sees them: stories, load, one closing line each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from daemons.lb.fleet import Pick
from daemons.lb.metrics import Metrics
from daemons.lb.order import Order
from daemons.protocol.causes import Failure
from daemons.protocol.ids import RoomKey, room_hex
from daemons.runtime.log import Logger
from daemons.runtime.recorder import Recorder

ATTEMPT = 1  # a retry is a new room
STEPS = {
    "": frozenset({"dispatch"}),
    "dispatch": frozenset({"stream", ""}),  # posted to both, nothing of the answer is here
    "stream": frozenset({""}),
}


@dataclass(slots=True)
class Telling:
    """Tells one request's story from dispatch to its end."""

    order: Order
    pick: Pick
    rooms: Sequence[int]
    recorder: Recorder
    metrics: Metrics
    log: Logger
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    begun_s: float = field(init=False)
    first_s: float | None = None  # from the request to the beginning of the answer

    def __post_init__(self) -> None:
        self.begun_s = self.clock()
        pair = self.pick.pair
        facts = {
            "path": self.order.path,
            "prefill": pair.prefill.name,
            "decode": pair.decode.name,
            "why": self.pick.because,
            "stream": str(self.order.stream).lower(),
            "batch": str(len(self.rooms)),
        }
        for key in self._keys():
            tale = self.recorder.enter(
                key,
                "dispatch",
                self.pick.because,
                self.wall(),
                peer=f"{pair.prefill.name} -> {pair.decode.name}",
            )
            tale.facts.update(facts)

    def began(self) -> None:
        """The head of the answer goes to the client."""
        self.first_s = self.clock() - self.begun_s
        for key in self._keys():
            self.recorder.enter(key, "stream", "first event", self.wall())

    def prefill_ended(self, how: str) -> None:
        """Prefill's leg is over; the room may be over already."""
        for key in self._keys():
            self.recorder.note(key, f"prefill leg {how}", self.wall())

    def ended(self, status: int, failure: Failure | None) -> None:
        """The request is over: close the stories, count, and log a line for each room."""
        whole_s = self.clock() - self.begun_s
        first_s = self.first_s if failure is not None or self.first_s is not None else whole_s
        for key in self._keys():
            self.recorder.leave(
                key, failure.cause.value if failure else "done", self.wall(), failure
            )
            self.log.info(
                "room.ended",
                room=room_hex(key.room),
                prefill=self.pick.pair.prefill.name,
                decode=self.pick.pair.decode.name,
                path=self.order.path,
                status=status,
                failure=str(failure) if failure else None,
                first_s=None if first_s is None else round(first_s, 6),
                whole_s=round(whole_s, 6),
            )
        self.metrics.ended(self.order.path, status, failure, first_s=first_s, whole_s=whole_s)

    def _keys(self) -> list[RoomKey]:
        return [RoomKey(room, ATTEMPT) for room in self.rooms]
