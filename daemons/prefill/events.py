"""What can happen to a prefill rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.engine.step import Prepared, StepDone, StepFailed
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
    """A write of a room has been acknowledged by decode's engine.

    ``early_bytes`` of it were so while the forward that it follows was under way.
    """

    key: RoomKey
    sent_bytes: int
    early_bytes: int = 0
    transport: str = ""  # what carried them
    wire_s: float = field(default=0.0, compare=False)  # how long that took


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
    """A write was not carried out, or not to its end: called off, or its forward broke.

    What had begun of it is acknowledged.
    """

    key: RoomKey


Event = (
    Submitted
    | Cancelled
    | Finished
    | MessageCame
    | ConnectionLost
    | Probed
    | Prepared
    | StepDone
    | StepFailed
    | WriteDone
    | WriteFailed
    | WriteSkipped
    | Draining
    | Stopping
    | Tick
)
