"""Attention by the compiled kernels: over the pages where they lie, without a copy of the past."""

from __future__ import annotations

import ctypes as c
from array import array
from collections.abc import Callable
from itertools import chain

import torch

from daemons.engine.attention import PLAIN, Attend, Rule
from daemons.engine.batch import Batch
from daemons.engine.kv_cache import KvPool
from daemons.engine.native import abi

LARGEST_GROUP = 64  # query heads of a kv head


class NativeAttention:
    """One forward's attention; a model that runs in the kernels takes its batch and pool from it.

    Attributes:
        batch: the batch as the kernels see it.
        cache: the pool's first layer, as the kernels see it.
        layer_bytes: from one layer's cache to the next.
    """

    def __init__(self, team: abi.Team, pool: KvPool, batch: Batch) -> None:
        """Lay the batch out for the kernels."""
        memory = pool.memory
        self._team = team
        self._pool = pool
        self._spans, self._pages = _tables(batch)
        self._ids, self._positions = batch.ids.int(), batch.positions.int()
        self.batch = abi.Batch(
            self._ids.data_ptr(),
            self._positions.data_ptr(),
            self._spans.buffer_info()[0],
            self._pages.buffer_info()[0],
            len(batch.ids),
            len(batch.spans),
            batch.progress.address if batch.progress else None,
        )
        self._progress = batch.progress
        self.cache = abi.Cache(
            memory.data_ptr(), pool.pages, pool.page_size, pool.kv_heads, memory.shape[-1]
        )
        self.layer_bytes = memory.stride(0) * memory.element_size()

    def __call__(
        self, layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
    ) -> torch.Tensor:
        """Write a layer's keys and values, then attend; see :class:`Attend`."""
        tokens, heads, head_dim = query.shape
        query, kv = _rows(query), _rows(kv)
        mixed = torch.empty(tokens, heads * head_dim, dtype=query.dtype)
        cache = abi.Cache.from_buffer_copy(self.cache)
        cache.base += layer * self.layer_bytes
        fault = self._team.library.calls.pd_attend(
            self._team.address,
            self._team.space,
            c.byref(self.batch),
            c.byref(cache),
            c.byref(_rule(rule, head_dim)),
            query.dtype is torch.bfloat16,
            heads // self._pool.kv_heads,
            query.data_ptr(),
            query.stride(0),
            kv.data_ptr(),
            kv.stride(0),
            mixed.data_ptr(),
        )
        abi.checked(fault)
        if self._progress is not None:
            self._progress.reach(layer)
        return mixed


def native_attention(team: abi.Team) -> Callable[[KvPool, Batch], Attend]:
    """Return the kernels' attention for any forward."""

    def attention(pool: KvPool, batch: Batch) -> Attend:
        return NativeAttention(team, pool, batch)

    return attention


def attention_fits(pool: KvPool, heads: int) -> bool:
    """Say whether the kernels can attend over this pool."""
    memory = pool.memory
    return (
        memory.device.type == "cpu"
        and memory.dtype in (torch.float32, torch.bfloat16)
        and memory.shape[-1] % 2 == 0
        and heads // pool.kv_heads <= LARGEST_GROUP
    )


def _rows(heads: torch.Tensor) -> torch.Tensor:
    """Return the same with the entries of a token behind each other."""
    *_, head_dim = heads.shape
    return heads if heads.stride()[1:] == (head_dim, 1) else heads.contiguous()


def _rule(rule: Rule, head_dim: int) -> abi.Rule:
    scale = head_dim**-0.5 if rule.scale is None else rule.scale
    return abi.Rule(rule.window or 0, scale, rule.softcap or 0.0)


def _tables(batch: Batch) -> tuple[array[int], array[int]]:
    """Return the spans, four numbers each, and the pages of all of them."""
    spans = array("i")
    at = 0
    for span in batch.spans:
        spans.extend((span.first, span.tokens, span.start, at))
        at += len(span.pages)
    return spans, array("i", chain.from_iterable(span.pages for span in batch.spans))
