"""The KV pool and the metadata rows of a process, with marks in the place of bytes.

A mark depends on the token at a position, on all tokens before it, and on what else must be the
same where pages are shared: so a read can tell whether its content is right, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from daemons.engine.step import Item
from daemons.kv.stretch import Stretch
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
    window_pages: int = 0
    kv: list[int] = field(init=False)
    window_kv: list[int] = field(init=False)  # of the layers with a window
    rows: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.kv = [-1] * (self.page_size * self.pages)
        self.window_kv = [-1] * (self.page_size * self.window_pages)
        self.rows = [EMPTY_ROW] * self.rows_count

    def page(self, page: int) -> list[int]:
        """Return the marks of one page."""
        return self.kv[page * self.page_size : (page + 1) * self.page_size]

    def put_page(self, page: int, content: list[int]) -> None:
        """Overwrite one page."""
        self.kv[page * self.page_size : (page + 1) * self.page_size] = content

    def window_page(self, page: int) -> list[int]:
        """Return the marks of one window page."""
        return self.window_kv[page * self.page_size : (page + 1) * self.page_size]

    def put_window_page(self, page: int, content: list[int]) -> None:
        """Overwrite one window page."""
        self.window_kv[page * self.page_size : (page + 1) * self.page_size] = content

    def write(self, content: list[int], item: Item) -> None:
        """Write the marks of an item's positions of a text through its page tables."""
        for position in range(item.start, item.start + len(item.tokens)):
            self.kv[self._at(item.pages, 0, position)] = content[position]
            if self.window_pages:
                at = self._at(item.window, item.window_first, position)
                self.window_kv[at] = content[position]

    def holds(self, content: list[int], item: Item, window: int | None) -> bool:
        """Say whether what an item's first token sees through its page tables is its text's."""
        return all(
            self.kv[self._at(item.pages, 0, at)] == content[at] for at in range(item.start)
        ) and (window is None or self._holds_window(content, item, window))

    def _holds_window(self, content: list[int], item: Item, window: int) -> bool:
        return all(
            self.window_kv[self._at(item.window, item.window_first, at)] == content[at]
            for at in range(max(0, item.start - window + 1), item.start)
        )

    def _at(self, table: tuple[int, ...], first: int, position: int) -> int:
        """Return where a position's mark is; a page that the table lacks is nobody's mark."""
        page, offset = divmod(position, self.page_size)
        if not first <= page < first + len(table):
            raise AssertionError(f"text page {page} is not in the table {table} from {first}")
        return table[page - first] * self.page_size + offset


@dataclass(frozen=True, slots=True)
class MarkSums:
    """``PageSums`` over marks: of a full layer, and of one with a window; one kind and head."""

    memory: Memory
    can_be_had: bool = True
    places: frozenset[tuple[int, int, int]] = frozenset({(0, 0, 0), (1, 0, 0)})

    def of(self, stretch: Stretch, tokens: int = 0) -> int:
        """Return the sum of a part of a text; what nobody sees later is in no stretch."""
        full = [self.memory.page(page) for page in stretch.pages]
        window = [self.memory.window_page(page) for page in stretch.window]
        return crc32(repr([full, window]).encode())

    def difference(self, stretch: Stretch, sums: Sequence[ChunkSum], tokens: int = 0) -> str:
        """Say where a text is not what was summed, as the real one does."""
        return PageSums.difference(self, stretch, sums, tokens)  # type: ignore[arg-type]
