"""Which pages a layer still needs that sees only so many tokens.

What lies before is never read again, so it need not travel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Windows:
    """What the layers of a model see.

    Attributes:
        page_size: tokens per page.
        by_layer: the tokens that one sees, itself included; None, and layers behind these: all.
    """

    page_size: int = 1
    by_layer: tuple[int | None, ...] = ()

    def __bool__(self) -> bool:
        """Whether any layer does not see everything."""
        return any(window is not None for window in self.by_layer)

    @property
    def largest(self) -> int:
        """The most that a layer with a window sees, in tokens; 0: no layer has one."""
        return max((window for window in self.by_layer if window is not None), default=0)

    def of(self, layer: int) -> int | None:
        """Return the window of a layer, None where it sees everything."""
        return self.by_layer[layer] if layer < len(self.by_layer) else None

    def alike(self, layers: range) -> Iterator[range]:
        """Take layers apart into neighbours with the same window."""
        for _, some in groupby(layers, key=self.of):
            numbers = list(some)
            yield range(numbers[0], numbers[-1] + 1)

    def unseen(self, layer: int, first: int, tokens: int) -> int:
        """Return how many pages from the ``first`` on no token behind ``tokens`` sees."""
        return max(0, first_needed_page(tokens, self.of(layer), self.page_size) - first)


ALL_SEEN = Windows()


def first_needed_page(tokens: int, window: int | None, page_size: int) -> int:
    """Return the first page that the next token sees, and so every later one, behind a text.

    Args:
        tokens: of the text; the next one has this position.
        window: tokens that one sees, itself included; None: all.
        page_size: tokens per page.
    """
    if window is None:
        return 0
    return max(0, tokens - window + 1) // page_size


def window_pages_needed(window: int, chunk_tokens: int, page_size: int) -> int:
    """Return how many pages a room needs at most in layers with a window, however long its text.

    Those that the first token of a chunk sees, and those that the chunk is written to.

    Args:
        window: tokens that one sees, itself included.
        chunk_tokens: the most that are run at once.
        page_size: tokens per page.
    """
    return -(-(window - 1 + chunk_tokens - 1) // page_size) + 1
