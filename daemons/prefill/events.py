"""What can happen to a prefill rank."""

from __future__ import annotations

from dataclasses import dataclass

from daemons.engine.step import StepDone, StepFailed
from daemons.protocol.ids import RoomKey
from daemons.runtime.events import (
    Cancelled,
    ConnectionLost,
    Draining,
    Finished,
    MessageCame,
    Probed,
    Stopping,
    Submitted,
    Tick,
)


@dataclass(frozen=True, slots=True)
class WriteDone:
    """A write of a room has been acknowledged by decode's engine."""

    key: RoomKey
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """A write of a room ended badly; nothing of it leaves this process any more.

    ``cut`` tells that bytes which were in sockets may still land; otherwise none was sent.
    """

    key: RoomKey
    cut: bool
    detail: str


@dataclass(frozen=True, slots=True)
class WriteSkipped:
    """A write had been called off before the lane came to it."""

    key: RoomKey


Event = (
    Submitted
    | Cancelled
    | Finished
    | MessageCame
    | ConnectionLost
    | Probed
    | StepDone
    | StepFailed
    | WriteDone
    | WriteFailed
    | WriteSkipped
    | Draining
    | Stopping
    | Tick
)
