"""What the prefill core asks its shell to do: values."""

from __future__ import annotations

from daemons.prefill.commands import CallOffWrites, Command, LearnBuffers, WriteKV
from daemons.protocol.ids import PeerId, RoomKey


def test_a_write_has_no_row_unless_it_is_the_last() -> None:
    write = WriteKV(RoomKey(1, 1), PeerId("d0", 1), (0,), (5,))
    assert write.row is None
    assert write == WriteKV(RoomKey(1, 1), PeerId("d0", 1), (0,), (5,))


def test_the_union_has_prefills_own_commands() -> None:
    assert {WriteKV, CallOffWrites, LearnBuffers} <= set(Command.__args__)
