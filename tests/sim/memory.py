"""The KV pool and the metadata rows of a process, with marks in the place of bytes.

A mark depends on the token at a position, on all tokens before it, and on what else must be the
same where pages are shared: so a read can tell whether its content is right, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from daemons.kv.window import first_needed_page
from daemons.protocol.metadata import ROW_BYTES, ChunkSum
from daemons.transfer.sums import PageSums

EMPTY_ROW = bytes(ROW_BYTES)


def marks(model: str, salt: str, tokens: Iterable[int]) -> list[int]:
    """Return what the KV of a text looks like, position by position."""
    mark, found = crc32(f"{model} {salt}".encode()), []
    for token in tokens:
        mark = (mark * 1_000_003 + token + 1) % (2**61 - 1)
        found.append(mark)
    return found


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

    def put_page(self, page: int, content: list[int]) -> None:
        """Overwrite one page."""
        self.kv[page * self.page_size : (page + 1) * self.page_size] = content

    def write(self, content: list[int], pages: tuple[int, ...], start: int, count: int) -> None:
        """Write the marks of ``count`` positions of a text from ``start`` through a page table."""
        for position in range(start, start + count):
            page, offset = divmod(position, self.page_size)
            self.kv[pages[page] * self.page_size + offset] = content[position]

    def holds(
        self, content: list[int], pages: tuple[int, ...], count: int, window: int | None
    ) -> bool:
        """Say whether what the token at ``count`` sees through a page table are a text's marks."""
        low = 0 if window is None else max(0, count - window + 1)
        return all(
            self.kv[pages[at // self.page_size] * self.page_size + at % self.page_size]
            == content[at]
            for at in range(low, count)
        )


@dataclass(frozen=True, slots=True)
class MarkSums:
    """``PageSums`` over marks: of one layer, one kind and one head."""

    memory: Memory
    window: int | None
    can_be_had: bool = True
    places: frozenset[tuple[int, int, int]] = frozenset({(0, 0, 0)})

    def of(self, pages: Sequence[int], first: int = 0, tokens: int = 0) -> int:
        """Return the sum of some pages, without those that no token behind the prompt sees."""
        needed = first_needed_page(tokens, self.window, self.memory.page_size)
        seen = pages[max(0, needed - first) :]
        return crc32(repr([self.memory.page(page) for page in seen]).encode())

    def difference(self, pages: Sequence[int], sums: Sequence[ChunkSum], tokens: int = 0) -> str:
        """Say where pages are not what was summed, as the real one does."""
        return PageSums.difference(self, pages, sums, tokens)  # type: ignore[arg-type]
