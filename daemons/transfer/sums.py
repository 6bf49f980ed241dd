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

from daemons.kv.window import ALL_SEEN, Windows
from daemons.protocol.handshake import KvRegion
from daemons.protocol.metadata import ChunkSum
from daemons.transfer import other_memory


class PageSums:
    """Sums over the pages of a pool."""

    def __init__(
        self, regions: Sequence[KvRegion], pages: int, windows: Windows = ALL_SEEN
    ) -> None:
        """``pages`` is the size of the pool; the memory must outlive this."""
        ordered = sorted(regions, key=lambda region: (region.layer, region.kind, region.head))
        self.places = frozenset((r.layer, r.kind, r.head) for r in regions)
        self.can_be_had = all(_is_host_memory(region.address) for region in ordered[:1])
        self._windows = windows
        self._views = [
            (_view(region.address, region.page_bytes * pages), region)
            for region in ordered
            if self.can_be_had
        ]

    def of(self, pages: Sequence[int], first: int = 0, tokens: int = 0) -> int:
        """Return the sum of some pages, in the order in which they are given.

        They begin with page ``first`` of a prompt of ``tokens``: what no token behind it sees does
        not travel, and is left out.
        """
        found = xxhash.xxh3_64()
        runs_behind: dict[int, list[tuple[int, int]]] = {}
        for view, region in self._views:
            unseen = self._windows.unseen(region.layer, first, tokens)
            if unseen not in runs_behind:
                runs_behind[unseen] = _runs(pages[unseen:])
            for begin, end in runs_behind[unseen]:
                found.update(view[begin * region.page_bytes : end * region.page_bytes])
        return found.intdigest()

    def difference(self, pages: Sequence[int], sums: Sequence[ChunkSum], tokens: int = 0) -> str:
        """Return where ``pages`` are not what was summed, with both sums; "" when they are."""
        if not self.can_be_had:
            return "prefill sums its pages, and the memory here is not the host's"
        for first, count, theirs in sums:
            if first + count > len(pages):
                return f"pages {first} to {first + count - 1} were summed, {len(pages)} are here"
            ours = self.of(pages[first : first + count], first, tokens)
            if ours != theirs:
                span = f"pages {first} to {first + count - 1} of {len(pages)}"
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


def _view(address: int, length: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * length).from_address(address)).cast("B")


def _is_host_memory(address: int) -> bool:
    try:
        other_memory.read(os.getpid(), address, 1)
    except OSError:
        return False
    return True
