"""Keys and values: one piece of memory, in pools by layer, kind, head, page.

- The pages of one head of one layer lie next to each other, so a slice of the heads is a set of
  regions, a run of pages is one contiguous copy, and attention reads a run as a view.
- Layers that see everything and layers with a window have a pool each, with page numbers of its
  own: what lies before a window is never read, so the second one needs few pages for each room. A
  pool without layers has no bytes. Another kind of state would be another pool beside them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from daemons.engine.device import Place
from daemons.kv.shareable import shareable
from daemons.protocol.handshake import KvRegion

KINDS = 2  # key, value
FP8 = torch.float8_e4m3fn
LARGEST_FP8 = 448.0


@dataclass(frozen=True, slots=True)
class KvPool:
    """Keys and values of some layers, for every token that is remembered.

    Attributes:
        memory: ``[layers, kind, kv_heads, pages, page_size, head_dim]``, contiguous.
        by_slot: the same as ``[layers, kind * kv_heads, slots, head_dim]``.
        by_page: the same as ``[layers, kind * kv_heads, pages, page_size * head_dim]``.
    """

    memory: torch.Tensor
    by_slot: torch.Tensor
    by_page: torch.Tensor

    @property
    def layers(self) -> int:
        """How many layers it is of."""
        return int(self.memory.shape[0])

    @property
    def kv_heads(self) -> int:
        """Heads of keys; as many of values."""
        return int(self.memory.shape[2])

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return int(self.memory.shape[3])

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return int(self.memory.shape[4])

    @property
    def _raw(self) -> torch.Tensor:
        return self.by_page.view(torch.uint8) if self.memory.dtype is FP8 else self.by_page

    def write(self, layer: int, slots: torch.Tensor, kv: torch.Tensor) -> None:
        """Put keys and values of a batch in their places.

        Args:
            layer: which layer.
            slots: ``[tokens]``, page * page_size + place in the page.
            kv: ``[tokens, kind * kv_heads, head_dim]``.
        """
        into, rows = self.by_slot[layer], kv.transpose(0, 1)
        if into.dtype is FP8:  # which torch copies by index as bytes only
            into, rows = into.view(torch.uint8), rounded(rows).view(torch.uint8)
        into.index_copy_(1, slots, rows)

    def regions(self, number: int, layer: int) -> tuple[KvRegion, ...]:
        """Return where the pages of each (kind, head) of a layer lie, in memory order.

        Args:
            number: which layer of this pool.
            layer: what the model calls it.
        """
        _, kinds, heads, pages, page_size, head_dim = self.memory.shape
        page_bytes = page_size * head_dim * self.memory.element_size()
        region_bytes = pages * page_bytes
        address = self.memory.data_ptr() + number * kinds * heads * region_bytes
        return tuple(
            KvRegion(address + (kind * heads + head) * region_bytes, page_bytes, layer, kind, head)
            for kind in range(kinds)
            for head in range(heads)
        )

    def copy_out(self, pages: Sequence[int]) -> torch.Tensor:
        """Return the content of some pages in host memory.

        Returns:
            ``[layers, kind * kv_heads, pages, page_size * head_dim]``, a copy; fp8 as
            bytes.
        """
        index = torch.tensor(pages, device=self.memory.device)
        return self._raw.index_select(2, index).cpu()

    def copy_in(self, pages: Sequence[int], content: torch.Tensor) -> None:
        """Put the content of as many pages into these.

        Raises:
            ValueError: another number of pages than ``content`` has.
        """
        if len(pages) != content.shape[2]:
            raise ValueError(f"{len(pages)} pages for the content of {content.shape[2]}")
        index = torch.tensor(pages, device=self.memory.device)
        self._raw.index_copy_(2, index, content.to(self.memory.device))

    def clear(self, pages: range) -> None:
        """Zero some pages in every layer and head."""
        self._raw[:, :, pages.start : pages.stop].zero_()


class LayerPlace(NamedTuple):
    """Where a layer's pages are."""

    windowed: bool  # in the pool of layers with a window
    number: int  # which layer of its pool


@dataclass(frozen=True, slots=True)
class KvMemory:
    """Keys and values of all layers.

    Attributes:
        memory: ``[elements]``, the pools behind each other.
        full: of layers that see everything.
        window: of layers with a window; without layers or pages where there are none.
        places: by layer.
    """

    memory: torch.Tensor
    full: KvPool
    window: KvPool
    places: tuple[LayerPlace, ...]

    def pool_of(self, layer: int) -> KvPool:
        """Return the pool that a layer's pages are in."""
        return self.window if self.places[layer].windowed else self.full

    @property
    def some_pool(self) -> KvPool:
        """A pool with a layer; both are alike but for their pages and layers."""
        return self.pool_of(0)

    def regions(self) -> tuple[KvRegion, ...]:
        """Return where the pages of each (layer, kind, head) lie, in this order."""
        return tuple(
            region
            for layer, place in enumerate(self.places)
            for region in self.pool_of(layer).regions(place.number, layer)
        )


def rounded(kv: torch.Tensor) -> torch.Tensor:
    """Return keys and values in fp8; what is larger than the largest number becomes that."""
    return kv.clamp(-LARGEST_FP8, LARGEST_FP8).to(FP8)


def make_pool(
    layers: int, kv_heads: int, pages: int, page_size: int, head_dim: int, place: Place
) -> KvPool:
    """Return a zeroed pool; on a CPU neighbours may map it, from a memory page on."""
    shape = (layers, KINDS, kv_heads, pages, page_size, head_dim)
    return _pool(_zeroed(math.prod(shape), place), shape)


def make_memory(
    windowed: Sequence[bool],
    *,
    kv_heads: int,
    pages: int,
    window_pages: int,
    page_size: int,
    head_dim: int,
    place: Place,
) -> KvMemory:
    """Return zeroed memory.

    Args:
        windowed: by layer: whether it has pages of the window pool.
        kv_heads: heads of keys in a layer.
        pages: of the full pool.
        window_pages: of the window pool.
        page_size: tokens per page.
        head_dim: entries of a key.
        place: where, and in which type; on a CPU neighbours may map it.
    """
    seen = [0, 0]
    places = []
    for is_windowed in windowed:
        places.append(LayerPlace(is_windowed, seen[is_windowed]))
        seen[is_windowed] += 1
    full, window = (
        (layers, KINDS, kv_heads, count, page_size, head_dim)
        for layers, count in zip(seen, (pages, window_pages), strict=True)
    )
    first = math.prod(full)
    memory = _zeroed(first + math.prod(window), place)
    pools = _pool(memory[:first], full), _pool(memory[first:], window)
    return KvMemory(memory, *pools, tuple(places))


def memory_of(pool: KvPool) -> KvMemory:
    """Return a pool as the memory of layers that see everything."""
    memory = pool.memory.flatten()
    nothing = _pool(memory[:0], (0, *pool.memory.shape[1:3], 0, *pool.memory.shape[4:]))
    places = tuple(LayerPlace(windowed=False, number=i) for i in range(len(pool.memory)))
    return KvMemory(memory, pool, nothing, places)


def _pool(memory: torch.Tensor, shape: tuple[int, ...]) -> KvPool:
    layers, kinds, kv_heads, pages, page_size, head_dim = shape
    return KvPool(
        memory.view(shape),
        memory.view(layers, kinds * kv_heads, pages * page_size, head_dim),
        memory.view(layers, kinds * kv_heads, pages, page_size * head_dim),
    )


def _zeroed(elements: int, place: Place) -> torch.Tensor:
    if not place.is_cpu:
        return torch.zeros(elements, dtype=place.dtype, device=place.device)
    buffer = shareable(elements * place.dtype.itemsize)  # the tensor keeps it alive
    return torch.frombuffer(buffer, dtype=place.dtype)
