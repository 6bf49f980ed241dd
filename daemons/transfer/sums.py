"""Sums of pages, the same on both sides: what was sent is what has landed.

A sum goes over the regions by layer, kind and head, in each over the pages in prompt order, so it
does not depend on where the pages lie. XXH3 of 64 bits: it finds faults, it keeps nobody out.
Memory that is not the host's has no sums.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import xxhash

from daemons.kv.stretch import Stretch
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.protocol.handshake import KvRegion
from daemons.protocol.metadata import ChunkSum
from daemons.transfer import other_memory


class PageSums:
    """Sums over the pages of a pool, and of the window pool where there is one."""

    def __init__(
        self, regions: Sequence[KvRegion], pages: int, window: WindowPool = NO_POOL
    ) -> None:
        """``pages`` is the size of the pool; the memory must outlive this."""
        ordered = sorted(regions, key=lambda region: (region.layer, region.kind, region.head))
        self.places = frozenset((r.layer, r.kind, r.head) for r in regions)
        self.can_be_had = all(_is_host_memory(region.address) for region in ordered[:1])
        self._pool = window
        self._views = [
            (_view(region, window.pages_of(region.layer, pages)), region)
            for region in ordered
            if self.can_be_had
        ]

    def of(self, stretch: Stretch, tokens: int = 0) -> int:
        """Return the sum of a part of a prompt of ``tokens``, page by page in prompt order.

        What of a layer no token behind the prompt sees does not travel, and is left out.
        """
        found = xxhash.xxh3_64()
        known: dict[tuple[bool, int], list[tuple[int, int]]] = {}
        for view, region in self._views:
            has_own = self._pool.has(region.layer)
            first = stretch.window_first if has_own else stretch.first
            unseen = self._pool.windows.unseen(region.layer, first, tokens)
            if (runs := known.get((has_own, unseen))) is None:
                pages = stretch.window if has_own else stretch.pages
                runs = known[has_own, unseen] = _runs(pages[unseen:])
            for begin, end in runs:
                found.update(view[begin * region.page_bytes : end * region.page_bytes])
        return found.intdigest()

    def difference(self, stretch: Stretch, sums: Sequence[ChunkSum], tokens: int = 0) -> str:
        """Return where a prompt is not what was summed, with both sums; "" when it is."""
        if not self.can_be_had:
            return "prefill sums its pages, and the memory here is not the host's"
        for first, count, theirs in sums:
            end = first + count
            if end > stretch.end:
                return f"pages {first} to {end - 1} were summed, they end at {stretch.end} here"
            ours = self.of(stretch.part(first, end), tokens)
            if ours != theirs:
                span = f"pages {first} to {end - 1} of {stretch.end}"
                return f"{span}: prefill's sum {theirs:016x}, ours {ours:016x}"
        return ""


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Return neighbours that ascend as ``(first, end)``."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and runs[-1][1] == page:
            runs[-1] = runs[-1][0], page + 1
        else:
            runs.append((page, page + 1))
    return runs


def _view(region: KvRegion, pages: int) -> memoryview:
    whole = ctypes.c_ubyte * (region.page_bytes * pages)
    return memoryview(whole.from_address(region.address)).cast("B")


def _is_host_memory(address: int) -> bool:
    try:
        other_memory.read(os.getpid(), address, 1)
    except OSError:
        return False
    return True
