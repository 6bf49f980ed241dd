"""One forward's tokens, laid out for the model: all items behind each other."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import torch

from daemons.engine.progress import Progress
from daemons.engine.step import Item
from daemons.kv.window import first_needed_page


@dataclass(frozen=True, slots=True)
class Span:
    """Where an item's tokens are in the batch, and where its context is in the pool."""

    first: int  # row of its first token
    tokens: int
    start: int  # position of its first token
    pages: tuple[int, ...]  # exactly those that hold the context
    contiguous: bool  # the pages are neighbours, in order

    @property
    def context(self) -> int:
        """Tokens that its last token sees, itself included."""
        return self.start + self.tokens

    @property
    def last(self) -> int:
        """Row of its last token."""
        return self.first + self.tokens - 1


@dataclass(slots=True)
class Table:
    """A page table that grows, read once: as it was given last, and as kernels read it."""

    pages: tuple[int, ...] = ()
    numbers: array[int] = field(default_factory=lambda: array("i"))

    def follow(self, pages: tuple[int, ...]) -> None:
        """Take over a table; what it has in common with the one before is not copied again."""
        known = len(self.pages)
        if pages[:known] != self.pages:
            known = 0
        self.numbers[known:] = array("i", pages[known:])
        self.pages = pages


@dataclass(frozen=True, eq=False)
class Batch:
    """Items that were checked; each form of them is made when it is asked for, once.

    Tensors are ``[tokens]`` on the model's device.
    """

    items: Sequence[Item]
    tables: Sequence[Table]  # of the items
    page_size: int
    device: torch.device
    progress: Progress | None = None  # told of each layer whose keys and values are written
    window_tables: Sequence[Table] = ()  # of the items, where layers have window pages

    @cached_property
    def ids(self) -> torch.Tensor:
        """Tokens."""
        return self._tensor([token for item in self.items for token in item.tokens])

    @cached_property
    def positions(self) -> torch.Tensor:
        """Their positions, each in its item's text."""
        return self._tensor(
            [at for item in self.items for at in range(item.start, item.start + len(item.tokens))]
        )

    @cached_property
    def slots(self) -> torch.Tensor:
        """Their places in the pool: page * page_size + place in the page."""
        slots: list[int] = []
        size = self.page_size
        for item in self.items:
            pages, start = item.pages, item.start
            places = range(start, start + len(item.tokens))
            slots.extend(pages[place // size] * size + place % size for place in places)
        return self._tensor(slots)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The items, as attention sees them."""
        spans: list[Span] = []
        first = 0
        for item in self.items:
            tokens = len(item.tokens)
            pages = item.pages[: -(-(item.start + tokens) // self.page_size)]
            spans.append(Span(first, tokens, item.start, pages, _is_run(pages)))
            first += tokens
        return tuple(spans)

    @cached_property
    def windowed(self) -> Batch:
        """The same tokens over their window pages.

        Texts begin with the first page that an item names there: positions are counted from it.
        """
        items = [
            Item(
                item.key,
                item.tokens,
                item.start - item.window_first * self.page_size,
                item.window,
                item.samples,
            )
            for item in self.items
        ]
        return Batch(items, self.window_tables, self.page_size, self.device)

    @cached_property
    def lasts(self) -> array[int]:
        """The row of each item's last token."""
        return array("i", accumulate((len(item.tokens) for item in self.items), initial=-1))[1:]

    def _tensor(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, device=self.device)


def lay_out(
    items: Sequence[Item],
    page_size: int,
    device: torch.device,
    progress: Progress | None = None,
    tables: Sequence[Table] | None = None,
    window_tables: Sequence[Table] | None = None,
) -> Batch:
    """Return the batch of items that were checked; the tables are theirs, where they are known."""
    if tables is None:
        tables = [Table(item.pages, array("i", item.pages)) for item in items]
    if window_tables is None:
        window_tables = [Table(item.window, array("i", item.window)) for item in items]
    return Batch(items, tables, page_size, device, progress, window_tables)


def _is_run(pages: tuple[int, ...]) -> bool:
    first, last = pages[0], pages[-1]
    return last - first == len(pages) - 1 and pages == tuple(range(first, last + 1))


def fault(
    item: Item,
    *,
    vocab_size: int,
    max_model_len: int,
    pages: int,
    page_size: int,
    known: tuple[int, ...] = (),
) -> str:
    """Return what is wrong with an item, "" when nothing is.

    ``known`` is a page table that was found right before: the same one is not read again, so that
    a step of a long text costs no more than one of a short text.
    """
    end = item.start + len(item.tokens)
    if not item.tokens:
        return "an item without tokens"
    if item.start < 0:
        return f"start {item.start} is negative"
    if end > max_model_len:
        return f"{end} tokens, the model's limit is {max_model_len}"
    if not 0 <= min(item.tokens) <= max(item.tokens) < vocab_size:
        return f"a token id outside 0..{vocab_size - 1}"
    needed = -(-end // page_size)
    if len(item.pages) < needed:
        return f"{len(item.pages)} pages for {end} tokens, {needed} are needed"
    if item.pages is not known and not 0 <= min(item.pages) <= max(item.pages) < pages:
        return f"a page outside 0..{pages - 1}"
    return ""


def window_fault(
    item: Item, *, window: int, pages: int, page_size: int, known: tuple[int, ...] = ()
) -> str:
    """Return what is wrong with the window pages of an item that is right else, "" for nothing.

    Args:
        item: which.
        window: the most tokens that a layer with a window sees.
        pages: of the window pool.
        page_size: tokens per page.
        known: a table that was found right before; its numbers are not read again.
    """
    first = first_needed_page(item.start, window, page_size)
    needed = -(-(item.start + len(item.tokens)) // page_size)
    end = item.window_first + len(item.window)
    if not 0 <= item.window_first <= first or end < needed:
        return (
            f"window pages {item.window_first} to {end - 1} of the text,"
            f" {first} to {needed - 1} are needed"
        )
    if item.window is not known and not 0 <= min(item.window) <= max(item.window) < pages:
        return f"a window page outside 0..{pages - 1}"
    return ""
