"""Attention over pages: the seam, and the way that works on every device.

Keys and values are written first, then each item attends over its own pages. Where those are
neighbours the pool is read through a view; otherwise they are gathered, at the price of a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from daemons.engine.batch import Batch, Span
from daemons.engine.kv_cache import KvPool


@dataclass(frozen=True, slots=True)
class Rule:
    """What a layer's queries see, and how their scores are made.

    Attributes:
        window: tokens that a query sees, itself included; None: all before it.
        scale: what scores are multiplied with; None: ``head_dim ** -0.5``.
        softcap: scores become ``softcap * tanh(scores / softcap)``; None: they stay.
    """

    window: int | None = None
    scale: float | None = None
    softcap: float | None = None


PLAIN = Rule()


class Attend(Protocol):
    """Attention of one forward: writes a layer's keys and values, then attends over the past."""

    def __call__(
        self, layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
    ) -> torch.Tensor:
        """Return what a layer's heads bring together, ``[tokens, heads * head_dim]``.

        Args:
            layer: which layer of the pool.
            query: ``[tokens, heads, head_dim]``.
            kv: ``[tokens, 2 * kv_heads, head_dim]``, keys before values.
            rule: the same for this layer in every forward.
        """


PoolAttention = Callable[[KvPool, Batch], Attend]  # for one forward


@dataclass(frozen=True, slots=True)
class _Part:
    """What is the same in all layers of one window for one item."""

    span: Span
    low: int  # the first position that any of its tokens sees
    mask: torch.Tensor | None  # [tokens, context - low], added to the scores; None: causal from 0
    pages: torch.Tensor | None  # [pages] to gather, from the one that holds low; None: neighbours


def paged_attention(pool: KvPool, batch: Batch) -> Attend:
    """Return attention for one forward, by torch's scaled dot product over views of the pool."""
    parts_of: dict[int | None, list[_Part]] = {}

    def attend(
        layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
    ) -> torch.Tensor:
        pool.write(layer, batch.slots, kv)
        if batch.progress is not None and pool.memory.device.type == "cpu":  # else under way
            batch.progress.reach(layer)
        parts = parts_of.get(rule.window)
        if parts is None:
            parts = [_part(span, pool, rule.window) for span in batch.spans]
            parts_of[rule.window] = parts
        outputs = [_attend_one(pool, layer, query, part, rule) for part in parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    return attend


def _part(span: Span, pool: KvPool, window: int | None) -> _Part:
    low = 0 if window is None else max(0, span.start - window + 1)
    pages = None
    if not span.contiguous:
        pages = torch.tensor(span.pages[low // pool.page_size :], device=pool.memory.device)
    mask = None
    if span.tokens > 1 and (span.start > 0 or (window is not None and span.tokens > window)):
        mask = _mask(span, low, window, pool.memory)
    return _Part(span, low, mask, pages)


def _mask(span: Span, low: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    hidden = torch.full(
        (span.tokens, span.context - low), float("-inf"), dtype=like.dtype, device=like.device
    )
    mask = hidden.triu(span.start - low + 1)
    if window is not None:
        mask += hidden.tril_(span.start - low - window)
    return mask


def _attend_one(
    pool: KvPool, layer: int, query: torch.Tensor, part: _Part, rule: Rule
) -> torch.Tensor:
    span = part.span
    keys, values = _context(pool, layer, part)  # each [1, kv_heads, context - low, head_dim]
    own = query[span.first : span.first + span.tokens]  # [tokens, heads, head_dim]
    heads, head_dim = own.shape[1:]
    if rule.softcap is not None:
        return _capped(own, keys[0], values[0], part, rule)
    if span.tokens == 1:
        # A single token sees everything: the query heads of a group become rows of one call,
        # which reads each key once and expands nothing.
        grouped = own.view(1, pool.kv_heads, heads // pool.kv_heads, head_dim)
        out = F.scaled_dot_product_attention(grouped, keys, values, scale=rule.scale)
        return out.view(1, heads * head_dim)
    out = F.scaled_dot_product_attention(
        own.transpose(0, 1).unsqueeze(0),
        keys,
        values,
        attn_mask=part.mask,
        is_causal=part.mask is None,
        scale=rule.scale,
        enable_gqa=heads != pool.kv_heads,
    )  # [1, heads, tokens, head_dim]
    return out[0].transpose(0, 1).reshape(span.tokens, heads * head_dim)


def _capped(
    own: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, part: _Part, rule: Rule
) -> torch.Tensor:
    """Attend with capped scores, which torch's scaled dot product does not know."""
    assert rule.softcap is not None
    tokens, heads, head_dim = own.shape
    kv_heads = keys.shape[0]
    scale = head_dim**-0.5 if rule.scale is None else rule.scale
    # [kv_heads, tokens, heads / kv_heads, head_dim]
    grouped = own.view(tokens, kv_heads, -1, head_dim).transpose(0, 1)
    scores = grouped.flatten(1, 2) @ keys.transpose(1, 2)
    scores = torch.tanh(scores.float() * (scale / rule.softcap)) * rule.softcap
    scores = scores.view(kv_heads, tokens, heads // kv_heads, -1)
    mask = part.mask
    if mask is None and tokens > 1:
        mask = _mask(part.span, part.low, None, scores)
    if mask is not None:
        scores += mask.unsqueeze(1)
    weights = scores.softmax(-1).to(values.dtype).flatten(1, 2)
    out = (weights @ values).view(kv_heads, tokens, -1, head_dim)
    return out.transpose(0, 1).reshape(tokens, heads * head_dim)


def _context(pool: KvPool, layer: int, part: _Part) -> tuple[torch.Tensor, torch.Tensor]:
    span, heads = part.span, pool.kv_heads
    if part.pages is None:
        first = span.pages[0] * pool.page_size
        both = pool.by_slot[layer, :, first + part.low : first + span.context]
    else:
        gathered = pool.by_page[layer].index_select(1, part.pages)
        skipped = part.low // pool.page_size * pool.page_size
        by_slot = gathered.view(2 * heads, -1, pool.by_slot.shape[-1])
        both = by_slot[:, part.low - skipped : span.context - skipped]
    return both[:heads].unsqueeze(0), both[heads:].unsqueeze(0)
