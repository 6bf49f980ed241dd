"""Memory for metadata rows: page-aligned, that peers may write, and neighbours map."""

from __future__ import annotations

import ctypes

from daemons.kv.shareable import shareable
from daemons.protocol.metadata import ROW_BYTES


class RowMemory:
    """``rows`` rows of ``ROW_BYTES``, all zero at first."""

    def __init__(self, rows: int) -> None:
        self.bytes = rows * ROW_BYTES
        self._memory = shareable(self.bytes)
        self._anchor = ctypes.c_char.from_buffer(self._memory)  # keeps the address valid
        self.address = ctypes.addressof(self._anchor)

    def address_of(self, row: int) -> int:
        """Return where a row begins."""
        return self.address + row * ROW_BYTES

    def read(self, row: int) -> bytes:
        """Return a copy of a row."""
        return self._memory[row * ROW_BYTES : (row + 1) * ROW_BYTES]

    def write(self, row: int, content: bytes) -> None:
        """Set a row; ``content`` has exactly ``ROW_BYTES``."""
        if len(content) != ROW_BYTES:
            raise ValueError(f"{len(content)} bytes for a row of {ROW_BYTES}")
        self._memory[row * ROW_BYTES : (row + 1) * ROW_BYTES] = content

    def zero(self, row: int) -> None:
        """Empty a row."""
        self.write(row, bytes(ROW_BYTES))
