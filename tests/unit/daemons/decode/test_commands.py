"""What the decode core asks its shell to do: values."""

from __future__ import annotations

from daemons.decode.commands import Command, ReadRow, ZeroRow
from daemons.protocol.generate import LookUp
from daemons.protocol.ids import RoomKey


def test_commands_are_values() -> None:
    assert ReadRow(RoomKey(1, 1), 3) == ReadRow(RoomKey(1, 1), 3)
    assert ReadRow(RoomKey(1, 1), 3) != ReadRow(RoomKey(1, 2), 3)


def test_the_union_has_decodes_own_commands() -> None:
    assert {ZeroRow, ReadRow, LookUp} <= set(Command.__args__)
