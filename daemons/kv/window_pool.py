"""The pool that layers with a window have to themselves, and what a room needs of it.

Its pages ("window pages") are another kind of state beside the pages of full layers: a room holds
a bounded number of them, however long its text becomes.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.kv.runs import pages_for
from daemons.kv.window import ALL_SEEN, Windows, first_needed_page, window_pages_needed


@dataclass(frozen=True, slots=True)
class WindowPool:
    """How large it is, and for which layers.

    Attributes:
        windows: of the model's layers.
        pages: of the pool; 0 where there is none: then all layers have the same pages.
    """

    windows: Windows = ALL_SEEN
    pages: int = 0

    def __bool__(self) -> bool:
        """Whether any layer has pages of its own."""
        return self.pages > 0

    def has(self, layer: int) -> bool:
        """Say whether a layer's pages are window pages."""
        return self.pages > 0 and self.windows.of(layer) is not None

    def pages_of(self, layer: int, pages: int) -> int:
        """Return how many pages the regions of a layer have; full ones have ``pages``."""
        return self.pages if self.has(layer) else pages

    def first_needed(self, tokens: int) -> int:
        """Return the first text page that any layer here sees from behind a text."""
        first = first_needed_page(tokens, self.windows.largest, self.windows.page_size)
        return min(first, pages_for(tokens, self.windows.page_size))

    def needed(self, chunk_tokens: int, text_pages: int) -> int:
        """Return how many window pages a room of so long a text needs; 0 without a pool."""
        if not self:
            return 0
        most = window_pages_needed(self.windows.largest, chunk_tokens, self.windows.page_size)
        return min(most, text_pages)


NO_POOL = WindowPool()
