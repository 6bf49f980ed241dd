from __future__ import annotations

import ctypes

import pytest

from daemons.protocol.metadata import ROW_BYTES
from daemons.runtime.row_memory import RowMemory


def test_rows_are_zero_at_first_and_lie_behind_each_other() -> None:
    rows = RowMemory(3)
    assert rows.bytes == 3 * ROW_BYTES
    assert [rows.read(row) for row in range(3)] == [bytes(ROW_BYTES)] * 3
    assert rows.address_of(2) - rows.address_of(1) == ROW_BYTES
    assert rows.address % 4096 == 0


def test_what_is_written_at_the_address_is_what_is_read() -> None:
    rows = RowMemory(2)
    content = bytes(range(256)) * (ROW_BYTES // 256)
    ctypes.memmove(rows.address_of(1), content, ROW_BYTES)
    assert rows.read(1) == content
    assert rows.read(0) == bytes(ROW_BYTES)
    rows.zero(1)
    assert rows.read(1) == bytes(ROW_BYTES)


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="3 bytes for a row"):
        RowMemory(1).write(0, b"abc")
