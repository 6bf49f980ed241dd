"""Attention by the compiled kernels: over the pages where they lie, without a copy of the past."""

from __future__ import annotations

import ctypes as c
from array import array
from collections.abc import Callable

import torch

from daemons.engine.attention import PLAIN, Attend, Rule
from daemons.engine.batch import Batch
from daemons.engine.kv_cache import KvMemory, KvPool
from daemons.engine.native import abi

LARGEST_GROUP = 64  # query heads of a kv head
_SPAN, _PAGES_AT = 4, 3  # numbers of a span, and which of them says where its page table begins


class NativeAttention:
    """One forward's attention; a model that runs in the kernels takes its batch and pool from it.

    Attributes:
        batch: the batch as the kernels see it.
        caches: of each layer, as the kernels see it.
    """

    def __init__(
        self,
        team: abi.Team,
        memory: KvMemory,
        batch: Batch,
        caches: c.Array[abi.Cache] | None = None,
    ) -> None:
        """Lay the batch out for the kernels; ``caches`` are the memory's, where they are known."""
        self._team = team
        self._memory = memory
        self._rows, self._spans, self._pages = _tables(batch)
        self._window_spans = (
            _window_spans(batch, self._spans, self._pages) if memory.window.layers else None
        )
        rows, tokens = self._rows.buffer_info()
        tokens //= 2
        self.batch = abi.Batch(
            rows,
            rows + tokens * self._rows.itemsize,
            self._spans.buffer_info()[0],
            self._window_spans.buffer_info()[0] if self._window_spans else None,
            self._pages.buffer_info()[0],
            tokens,
            len(batch.items),
            batch.progress.address if batch.progress else None,
        )
        self._progress = batch.progress
        self.caches = _caches_of(memory) if caches is None else caches

    def __call__(
        self, layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
    ) -> torch.Tensor:
        """Write a layer's keys and values, then attend; see :class:`Attend`."""
        tokens, heads, head_dim = query.shape
        query, kv = _rows(query), _rows(kv)
        mixed = torch.empty(tokens, heads * head_dim, dtype=query.dtype)
        cache = self.caches[layer]
        fault = self._team.library.calls.pd_attend(
            self._team.address,
            self._team.space,
            c.byref(self.batch),
            c.byref(cache),
            c.byref(_rule(rule, head_dim)),
            query.dtype is torch.bfloat16,
            heads // cache.kv_heads,
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


def native_attention(team: abi.Team) -> Callable[[KvMemory, Batch], Attend]:
    """Return the kernels' attention for any forward."""
    last: list[tuple[KvMemory, c.Array[abi.Cache]]] = []

    def attention(memory: KvMemory, batch: Batch) -> Attend:
        if not last or last[0][0] is not memory:
            last[:] = [(memory, _caches_of(memory))]
        return NativeAttention(team, memory, batch, last[0][1])

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


def _caches_of(memory: KvMemory) -> c.Array[abi.Cache]:
    caches = (abi.Cache * len(memory.places))()
    for layer, place in enumerate(memory.places):
        pool = memory.pool_of(layer)
        address = pool.memory[place.number].data_ptr()
        sizes = pool.pages, pool.page_size, pool.kv_heads, pool.memory.shape[-1]
        caches[layer] = abi.Cache(address, *sizes, place.windowed)
    return caches


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


def _window_spans(batch: Batch, spans: array[int], pages: array[int]) -> array[int]:
    """Return the spans with their window tables, which are put behind the other pages.

    Kernels count pages from a text's first one. Its entry would lie before the first that is there,
    and still behind the beginning of ``pages``: a text has more pages than it has left behind.
    """
    own = spans[:]
    for place, (item, table) in enumerate(zip(batch.items, batch.window_tables, strict=True)):
        own[_SPAN * place + _PAGES_AT] = len(pages) - item.window_first
        pages.extend(table.numbers)
    return own
