"""What can happen to a prefill rank: values."""

from __future__ import annotations

from daemons.prefill.events import Event, WriteDone, WriteFailed, WriteSkipped
from daemons.protocol.ids import RoomKey


def test_events_are_values() -> None:
    assert WriteDone(RoomKey(1, 1), 5) == WriteDone(RoomKey(1, 1), 5)
    assert WriteFailed(RoomKey(1, 1), True, "x") != WriteFailed(RoomKey(1, 1), False, "x")


def test_the_union_has_every_end_of_a_write() -> None:
    assert {WriteDone, WriteFailed, WriteSkipped} <= set(Event.__args__)
