"""Attention over pages: the seam, and the way that works on every device.

Keys and values are written first, then each item attends over its own pages. Where those are
neighbours the pool is read through a view; otherwise they are gathered, at the price of a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from daemons.engine.batch import Batch, Span
from daemons.engine.kv_cache import KvPool

# (layer, query [tokens, heads, head_dim], kv [tokens, 2 * kv_heads, head_dim])
#   -> [tokens, heads * head_dim]
Attend = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Part:
    """What is the same in all layers for one item."""

    span: Span
    mask: torch.Tensor | None  # [tokens, context], added to the scores; None: causal from 0
    pages: torch.Tensor | None  # [pages] to gather; None: they are neighbours


def paged_attention(pool: KvPool, batch: Batch) -> Attend:
    """Return attention for one forward, by torch's scaled dot product over views of the pool."""
    parts = [_part(span, pool) for span in batch.spans]

    def attend(layer: int, query: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        pool.write(layer, batch.slots, kv)
        outputs = [_attend_one(pool, layer, query, part) for part in parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    return attend


def _part(span: Span, pool: KvPool) -> _Part:
    pages = None
    if not span.contiguous:
        pages = torch.tensor(span.pages, device=pool.memory.device)
    mask = None
    if span.tokens > 1 and span.start > 0:
        hidden = torch.full(
            (span.tokens, span.context),
            float("-inf"),
            dtype=pool.memory.dtype,
            device=pool.memory.device,
        )
        mask = hidden.triu_(span.start + 1)
    return _Part(span, mask, pages)


def _attend_one(pool: KvPool, layer: int, query: torch.Tensor, part: _Part) -> torch.Tensor:
    span = part.span
    keys, values = _context(pool, layer, part)  # each [1, kv_heads, context, head_dim]
    own = query[span.first : span.first + span.tokens]  # [tokens, heads, head_dim]
    heads, head_dim = own.shape[1:]
    if span.tokens == 1:
        # A single token sees everything: the query heads of a group become rows of one call,
        # which reads each key once and expands nothing.
        grouped = own.view(1, pool.kv_heads, heads // pool.kv_heads, head_dim)
        return F.scaled_dot_product_attention(grouped, keys, values).view(1, heads * head_dim)
    out = F.scaled_dot_product_attention(
        own.transpose(0, 1).unsqueeze(0),
        keys,
        values,
        attn_mask=part.mask,
        is_causal=part.mask is None,
        enable_gqa=heads != pool.kv_heads,
    )  # [1, heads, tokens, head_dim]
    return out[0].transpose(0, 1).reshape(span.tokens, heads * head_dim)


def _context(pool: KvPool, layer: int, part: _Part) -> tuple[torch.Tensor, torch.Tensor]:
    span, heads = part.span, pool.kv_heads
    if part.pages is None:
        first = span.pages[0] * pool.page_size
        both = pool.by_slot[layer, :, first : first + span.context]
    else:
        gathered = pool.by_page[layer].index_select(1, part.pages)
        both = gathered.view(2 * heads, -1, pool.by_slot.shape[-1])[:, : span.context]
    return both[:heads].unsqueeze(0), both[heads:].unsqueeze(0)
