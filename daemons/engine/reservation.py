"""The KV pools of a model: how large they are, and their memory.

A room has window pages for what a layer's window shows, and for the chunk that is written, whatever
its text's length; so the window pool is as large as all rooms need at once, and the full pool takes
what is left.
"""

from __future__ import annotations

import math

import torch

from daemons.engine.config import EngineConfig
from daemons.engine.device import Place
from daemons.engine.kv_cache import KINDS, KvMemory, make_memory
from daemons.engine.memory import PageCosts, free_bytes, no_memory, pool_pages
from daemons.engine.models.spec import Spec, max_model_len
from daemons.kv.window import Windows, window_pages_needed
from daemons.protocol.handshake import PAGES_LIMIT


def reserved(
    config: EngineConfig, spec: Spec, place: Place, kv_tokens: int, window_rooms: int
) -> KvMemory:
    """Return the KV pools, whose memory is taken at once: nobody else counts it as free.

    Args:
        config: the size of a page, and of the pools where ``kv_tokens`` does not say it.
        spec: of the model.
        place: of the pools.
        kv_tokens: tokens that the full pool holds; 0: what memory is left.
        window_rooms: how many rooms hold window pages at once.

    Raises:
        OperatorError: the memory cannot be had; by how much, and what to set.
    """
    windowed = [window is not None for window in spec.windows]
    costs = _page_costs(config, spec, place, windowed, window_rooms)
    pages = pool_pages(config, costs, free=free_bytes(place), kv_tokens=kv_tokens)
    try:
        return make_memory(
            windowed,
            kv_heads=spec.kv_heads,
            pages=pages,
            window_pages=costs.window_pages_of(pages),
            page_size=config.page_size,
            head_dim=spec.head_dim,
            place=place,
        )
    except (OSError, torch.OutOfMemoryError) as error:  # more was promised than is given
        raise no_memory(f"a KV pool of {pages} pages", costs.bytes_of(pages), place) from error


def _page_costs(
    config: EngineConfig, spec: Spec, place: Place, windowed: list[bool], window_rooms: int
) -> PageCosts:
    """Return what pages cost: a room has window pages for a window and a chunk, and no more."""
    shape = (KINDS, spec.kv_heads, config.page_size, spec.head_dim)
    layer_bytes = math.prod(shape) * place.dtype.itemsize
    if not any(windowed):
        return PageCosts(spec.layers * layer_bytes)
    longest = -(-max_model_len(config, spec.positions) // config.page_size)
    largest = Windows(config.page_size, spec.windows).largest
    each = window_pages_needed(largest, config.chunk_tokens, config.page_size)
    return PageCosts(
        full_bytes=(spec.layers - sum(windowed)) * layer_bytes,
        window_bytes=sum(windowed) * layer_bytes,
        window_pages=min(PAGES_LIMIT, window_rooms * min(each, longest)),
        pages=min(PAGES_LIMIT, window_rooms * longest),
    )
