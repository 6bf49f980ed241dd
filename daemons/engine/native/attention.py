"""Attention by the compiled kernels: over the pages where they lie, without a copy of the past."""

from __future__ import annotations

import ctypes as c
from array import array
from collections.abc import Callable

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

    def __init__(
        self, team: abi.Team, pool: KvPool, batch: Batch, cache: abi.Cache | None = None
    ) -> None:
        """Lay the batch out for the kernels; ``cache`` is the pool's, where it is known."""
        self._team = team
        self._pool = pool
        self._rows, self._spans, self._pages = _tables(batch)
        rows, tokens = self._rows.buffer_info()
        tokens //= 2
        self.batch = abi.Batch(
            rows,
            rows + tokens * self._rows.itemsize,
            self._spans.buffer_info()[0],
            self._pages.buffer_info()[0],
            tokens,
            len(batch.items),
            batch.progress.address if batch.progress else None,
        )
        self._progress = batch.progress
        self.cache = _cache_of(pool) if cache is None else cache
        self.layer_bytes = pool.memory.stride(0) * pool.memory.element_size()

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
    last: list[tuple[KvPool, abi.Cache]] = []

    def attention(pool: KvPool, batch: Batch) -> Attend:
        if not last or last[0][0] is not pool:
            last[:] = [(pool, _cache_of(pool))]
        return NativeAttention(team, pool, batch, last[0][1])

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


def _cache_of(pool: KvPool) -> abi.Cache:
    memory = pool.memory
    return abi.Cache(memory.data_ptr(), pool.pages, pool.page_size, pool.kv_heads, memory.shape[-1])


def _tables(batch: Batch) -> tuple[array[int], array[int], array[int]]:
    """Return ids and then positions, the spans, four numbers each, and the pages of all of them."""
    ids, positions, spans, pages = array("i"), array("i"), array("i"), array("i")
    for item, table in zip(batch.items, batch.tables, strict=True):
        tokens, start = item.tokens, item.start
        spans.extend((len(ids), len(tokens), start, len(pages)))
        pages.extend(table.numbers)
        ids.extend(tokens)
        if len(tokens) == 1:
            positions.append(start)
        else:
            positions.extend(range(start, start + len(tokens)))
    ids.extend(positions)
    return ids, spans, pages
