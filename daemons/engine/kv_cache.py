"""The KV pool: one piece of memory, by layer, kind, head, page.

The pages of one head of one layer lie next to each other, so a slice of the heads is a set of
regions, a run of pages is one contiguous copy, and attention reads a run as a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from daemons.engine.device import Place
from daemons.kv.shareable import shareable
from daemons.protocol.handshake import KvRegion

KINDS = 2  # key, value
FP8 = torch.float8_e4m3fn
LARGEST_FP8 = 448.0


@dataclass(frozen=True, slots=True)
class KvPool:
    """Keys and values of every token that is remembered.

    Attributes:
        memory: ``[layers, kind, kv_heads, pages, page_size, head_dim]``, contiguous.
        by_slot: the same as ``[layers, kind * kv_heads, slots, head_dim]``.
        by_page: the same as ``[layers, kind * kv_heads, pages, page_size * head_dim]``.
    """

    memory: torch.Tensor
    by_slot: torch.Tensor
    by_page: torch.Tensor

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

    def regions(self) -> tuple[KvRegion, ...]:
        """Return where the pages of each (layer, kind, head) lie, in memory order."""
        layers, kinds, heads, pages, page_size, head_dim = self.memory.shape
        page_bytes = page_size * head_dim * self.memory.element_size()
        region_bytes = pages * page_bytes
        address = self.memory.data_ptr()
        return tuple(
            KvRegion(
                address + ((layer * kinds + kind) * heads + head) * region_bytes,
                page_bytes,
                layer,
                kind,
                head,
            )
            for layer in range(layers)
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


def rounded(kv: torch.Tensor) -> torch.Tensor:
    """Return keys and values in fp8; what is larger than the largest number becomes that."""
    return kv.clamp(-LARGEST_FP8, LARGEST_FP8).to(FP8)


def make_pool(
    layers: int, kv_heads: int, pages: int, page_size: int, head_dim: int, place: Place
) -> KvPool:
    """Return a zeroed pool; on a CPU neighbours may map it, from a memory page on."""
    shape = (layers, KINDS, kv_heads, pages, page_size, head_dim)
    if place.is_cpu:
        memory = _plain_memory(shape, place.dtype)
    else:
        memory = torch.zeros(shape, dtype=place.dtype, device=place.device)
    return KvPool(
        memory,
        memory.view(layers, KINDS * kv_heads, pages * page_size, head_dim),
        memory.view(layers, KINDS * kv_heads, pages, page_size * head_dim),
    )


def _plain_memory(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    buffer = shareable(torch.Size(shape).numel() * dtype.itemsize)  # the tensor keeps it alive
    return torch.frombuffer(buffer, dtype=dtype).view(shape)
