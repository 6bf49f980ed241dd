"""The KV pool and the metadata rows of a process, with marks in the place of bytes.

A mark names room, attempt and position, so that a read can tell whose content it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.protocol.ids import RoomKey
from daemons.protocol.metadata import ROW_BYTES

EMPTY_ROW = bytes(ROW_BYTES)


def mark(key: RoomKey, position: int) -> int:
    """Return what the KV of a room's token at ``position`` looks like."""
    return (key.room << 20) + (key.attempt << 12) + position


@dataclass(slots=True)
class Memory:
    """What survives as long as its process."""

    page_size: int
    pages: int
    rows_count: int
    kv: list[int] = field(init=False)
    rows: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.kv = [-1] * (self.page_size * self.pages)
        self.rows = [EMPTY_ROW] * self.rows_count

    def page(self, page: int) -> list[int]:
        """Return the marks of one page."""
        return self.kv[page * self.page_size : (page + 1) * self.page_size]

    def put_page(self, page: int, marks: list[int]) -> None:
        """Overwrite one page."""
        self.kv[page * self.page_size : (page + 1) * self.page_size] = marks

    def write(self, key: RoomKey, pages: tuple[int, ...], start: int, count: int) -> None:
        """Write the marks of ``count`` positions from ``start`` through a page table."""
        for position in range(start, start + count):
            page, offset = divmod(position, self.page_size)
            self.kv[pages[page] * self.page_size + offset] = mark(key, position)

    def holds(self, key: RoomKey, pages: tuple[int, ...], count: int) -> bool:
        """Say whether the first ``count`` positions of a page table are all ``key``'s own."""
        size, base = self.page_size, mark(key, 0)
        for index in range(-(-count // size)):
            begin, end = index * size, min(count, (index + 1) * size)
            at = pages[index] * size
            if self.kv[at : at + end - begin] != list(range(base + begin, base + end)):
                return False
        return True
