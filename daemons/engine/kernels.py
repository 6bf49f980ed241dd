"""Which kernels run a model here: chosen once, when it is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch

from daemons.engine.attention import Attend, PoolAttention, paged_attention
from daemons.engine.attention_cuda import VARLEN_PAGE, varlen_attention, varlen_works
from daemons.engine.batch import Batch
from daemons.engine.config import EngineConfig
from daemons.engine.device import Place
from daemons.engine.gathered import gathered_attention
from daemons.engine.kv_cache import FP8, KvMemory, KvPool, make_pool
from daemons.engine.native.abi import Library, Team
from daemons.engine.native.attention import attention_fits, native_attention
from daemons.engine.native.build import KERNELS
from daemons.engine.native.sampler import NativeSampler
from daemons.engine.parts import ByParts
from daemons.engine.sampler import Sampler, TorchSampler

Attention = Callable[[KvMemory, Batch], Attend]


def native_team(config: EngineConfig, place: Place, cores: Sequence[int]) -> Team | None:
    """Return the threads of the compiled kernels; None where torch is to do it.

    ``kernels: native`` builds them when they are not there; ``auto`` takes what is there.

    Raises:
        OperatorError: they are asked for, and cannot be had.
    """
    if config.kernels == "torch" or not place.is_cpu:
        return None
    path = KERNELS.found()
    if path is None:
        if config.kernels == "auto":
            return None
        path = KERNELS.build()
    members = config.threads or len(os.sched_getaffinity(0))
    return Team(Library(path), members, cores)


def choose_sampler(team: Team | None, vocab_size: int) -> Sampler:
    """Return what chooses tokens; both ways choose the same.

    Raises:
        OperatorError: there is not the memory for it.
    """
    return TorchSampler() if team is None else NativeSampler(team, vocab_size)


def choose_attention(
    memory: KvMemory, heads: int, team: Team | None, dtype: torch.dtype | None = None
) -> Attention:
    """Return the fastest attention that serves this memory, for queries of ``dtype`` (its own)."""
    pool = memory.some_pool
    if team is not None and attention_fits(pool, heads):
        return native_attention(team)
    return ByParts(choose_for_pool(pool, heads, dtype))


def choose_for_pool(pool: KvPool, heads: int, dtype: torch.dtype | None = None) -> PoolAttention:
    """Return the fastest attention of torch's that serves a pool, for queries of ``dtype``."""
    memory = pool.memory
    dtype = dtype or memory.dtype
    if memory.device.type == "cpu" and memory.dtype is not FP8:
        return paged_attention
    if memory.dtype is dtype and varlen_works(pool, heads):
        return varlen_attention
    for page_size in _copied_sizes(pool.page_size):
        place = Place(memory.device, dtype)
        probe = make_pool(1, pool.kv_heads, 1, page_size, memory.shape[-1], place)
        if varlen_works(probe, heads):
            return gathered_attention(varlen_attention, dtype, page_size)
    if memory.dtype is dtype:
        return paged_attention
    return gathered_attention(paged_attention, dtype, pool.page_size)


def _copied_sizes(page_size: int) -> list[int]:
    """Return page sizes to try for a copy, the pool's own first."""
    return [page_size, *([VARLEN_PAGE] if VARLEN_PAGE % page_size == 0 else [])]
