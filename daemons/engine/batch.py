"""One forward's tokens, laid out for the model: all items behind each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from daemons.engine.progress import Progress
from daemons.engine.step import Item


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


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors are ``[tokens]`` on the model's device."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    spans: tuple[Span, ...]
    progress: Progress | None = None  # told of each layer whose keys and values are written


def lay_out(
    items: Sequence[Item],
    page_size: int,
    device: torch.device,
    progress: Progress | None = None,
) -> Batch:
    """Return the batch of items that were checked."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    for item in items:
        start, tokens = item.start, len(item.tokens)
        end = start + tokens
        pages = item.pages[: -(-end // page_size)]
        spans.append(Span(len(ids), tokens, start, pages, _is_run(pages)))
        ids.extend(item.tokens)
        if tokens == 1:
            positions.append(start)
            slots.append(pages[start // page_size] * page_size + start % page_size)
            continue
        positions.extend(range(start, end))
        slots.extend(pages[p // page_size] * page_size + p % page_size for p in range(start, end))
    return Batch(
        torch.tensor(ids, device=device),
        torch.tensor(positions, device=device),
        torch.tensor(slots, device=device),
        tuple(spans),
        progress,
    )


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
