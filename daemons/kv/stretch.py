"""Where a part of a text lies: in the pages of full layers, and in those of layers with a window.

Both are runs of text pages without gaps; they may begin at different ones, and either may be empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Stretch(NamedTuple):
    """Pages of full layers (and of all, where there is one pool), and window pages.

    Attributes:
        first: the text page that lies in ``pages[0]``.
        window_first: the text page that lies in ``window[0]``.
    """

    first: int
    pages: tuple[int, ...]
    window_first: int = 0
    window: tuple[int, ...] = ()

    @property
    def begin(self) -> int:
        """The first text page of which anything is here."""
        return min((first for first, _ in self._parts), default=self.first)

    @property
    def end(self) -> int:
        """The text page behind the last of which anything is here."""
        return max((first + len(pages) for first, pages in self._parts), default=self.first)

    def part(self, begin: int, end: int) -> Stretch:
        """Return what is here of text pages ``begin .. end - 1``."""
        first, window_first = max(begin, self.first), max(begin, self.window_first)
        return Stretch(
            first,
            self.pages[first - self.first : max(0, end - self.first)],
            window_first,
            self.window[window_first - self.window_first : max(0, end - self.window_first)],
        )

    @property
    def _parts(self) -> list[tuple[int, tuple[int, ...]]]:
        both = (self.first, self.pages), (self.window_first, self.window)
        return [(first, pages) for first, pages in both if pages]


def joined(stretches: Iterable[Stretch]) -> Stretch:
    """Return stretches of one text, each of which begins where the one before ends, as one."""
    first = window_first = 0
    pages: tuple[int, ...] = ()
    window: tuple[int, ...] = ()
    for one in stretches:
        first, window_first = (
            first if pages else one.first,
            window_first if window else one.window_first,
        )
        pages, window = pages + one.pages, window + one.window
    return Stretch(first, pages, window_first, window)
