"""What can happen to a decode rank."""

from __future__ import annotations

from dataclasses import dataclass

from daemons.engine.step import Kept, Prepared, Restored, StepDone, StepFailed
from daemons.protocol.generate import RouteFailed, RouteFound
from daemons.protocol.ids import RoomKey
from daemons.protocol.metadata import Row, RowState
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
class RowRead:
    """The metadata row of a room was looked at; ``row`` is there only when it is RIGHT."""

    key: RoomKey
    state: RowState
    row: Row | None


@dataclass(frozen=True, slots=True)
class SumsVerified:
    """Pages of a room were compared with prefill's sums."""

    key: RoomKey
    wrong: str = ""  # both sums, where they differ


@dataclass(frozen=True, slots=True)
class Retract:
    """Take a running room out of the batch as if its pages were needed; a hook for tests.

    Nothing happens to a room that does not run, nor when the host has no place for it.
    """

    key: RoomKey


Event = (
    Submitted
    | Cancelled
    | Finished
    | RouteFound
    | RouteFailed
    | MessageCame
    | ConnectionLost
    | Probed
    | RowRead
    | SumsVerified
    | Prepared
    | StepDone
    | StepFailed
    | Kept
    | Restored
    | Retract
    | Draining
    | Stopping
    | Tick
)
