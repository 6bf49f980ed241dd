"""One forward's tokens, laid out for the model: all items behind each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

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


def lay_out(items: Sequence[Item], page_size: int, device: torch.device) -> Batch:
    """Return the batch of items that were checked."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    for item in items:
        end = item.start + len(item.tokens)
        pages = item.pages[: -(-end // page_size)]
        contiguous = all(after == before + 1 for before, after in pairwise(pages))
        spans.append(Span(len(ids), len(item.tokens), item.start, pages, contiguous))
        ids.extend(item.tokens)
        positions.extend(range(item.start, end))
        slots.extend(
            pages[p // page_size] * page_size + p % page_size for p in range(item.start, end)
        )
    return Batch(
        torch.tensor(ids, device=device),
        torch.tensor(positions, device=device),
        torch.tensor(slots, device=device),
        tuple(spans),
    )


def fault(item: Item, *, vocab_size: int, max_model_len: int, pages: int, page_size: int) -> str:
    """Return what is wrong with an item, "" when nothing is."""
    end = item.start + len(item.tokens)
    if not item.tokens:
        return "an item without tokens"
    if item.start < 0:
        return f"start {item.start} is negative"
    if end > max_model_len:
        return f"{end} tokens, the model's limit is {max_model_len}"
    if min(item.tokens) < 0 or max(item.tokens) >= vocab_size:
        return f"a token id outside 0..{vocab_size - 1}"
    needed = -(-end // page_size)
    if len(item.pages) < needed:
        return f"{len(item.pages)} pages for {end} tokens, {needed} are needed"
    if min(item.pages) < 0 or max(item.pages) >= pages:
        return f"a page outside 0..{pages - 1}"
    return ""
