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
from daemons.runtime.log import Logger, tell
from daemons.runtime.recorder import Recorder

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
    attempt: int = 1  # a retry has new rooms and the next attempt
    retry_of: str = ""  # the first room of the try before
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    begun_s: float = field(init=False)
    keys: list[RoomKey] = field(init=False)
    first_s: float | None = None  # from the request to the beginning of the answer

    def __post_init__(self) -> None:
        self.begun_s = self.clock()
        self.keys = [RoomKey(room, self.attempt) for room in self.rooms]
        pair = self.pick.pair
        facts = {
            "path": self.order.path,
            "prefill": self._prefill,
            "decode": pair.decode.name,
            "why": self.pick.because,
            "stream": str(self.order.stream).lower(),
            "batch": str(len(self.rooms)),
        }
        if pair.prefill is None:
            facts["local_prefill"] = "true"
            self.metrics.alone()
        if self.retry_of:
            facts["retry_of"] = self.retry_of
        for key in self.keys:
            tale = self.recorder.enter(
                key,
                "dispatch",
                self.pick.because,
                self.wall(),
                peer=str(pair),
            )
            tale.facts = {**facts}

    @property
    def stage(self) -> str:
        """How far the request is, as stories call it."""
        return "dispatch" if self.first_s is None else "stream"

    def began(self) -> None:
        """The head of the answer goes to the client."""
        self.first_s = self.clock() - self.begun_s
        for key in self.keys:
            self.recorder.enter(key, "stream", "first event", self.wall())

    def first_token(self, leg: str) -> None:
        """The first event of a leg of a stream is here."""
        self.metrics.first_token(leg, self.clock() - self.begun_s)

    def given_up(self, failure: Failure) -> None:
        """This try failed with nothing sent; the request goes on in other rooms."""
        self._close(failure.http_status, failure, self.clock() - self.begun_s, "retried")
        self.metrics.retried(failure)

    def prefill_ended(self, how: str) -> None:
        """Prefill's leg is over; the room may be over already."""
        for key in self.keys:
            self.recorder.note(key, f"prefill leg {how}", self.wall())

    def ended(self, status: int, failure: Failure | None) -> None:
        """The request is over: close the stories, count, and log a line for each room."""
        whole_s = self.clock() - self.begun_s
        first_s = self.first_s if failure is not None or self.first_s is not None else whole_s
        self._close(status, failure, whole_s, failure.cause.value if failure else "done")
        self.metrics.ended(self.order.path, status, failure, first_s=first_s, whole_s=whole_s)

    def _close(self, status: int, failure: Failure | None, whole_s: float, because: str) -> None:
        for key in self.keys:
            self.recorder.leave(key, because, self.wall(), failure)
            facts = {
                "room": room_hex(key.room),
                "attempt": self.attempt,
                "prefill": self._prefill,
                "decode": self.pick.pair.decode.name,
                "path": self.order.path,
                "status": status,
                "failure": str(failure) if failure else None,
                "first_s": None if self.first_s is None else round(self.first_s, 6),
                "whole_s": round(whole_s, 6),
            }
            tell(self.log, "room.ended", facts)

    @property
    def _prefill(self) -> str:
        prefill = self.pick.pair.prefill
        return "" if prefill is None else prefill.name
