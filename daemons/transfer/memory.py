"""Which addresses a process has registered, and whether a copy's source lies inside.

TCP would carry bytes from unregistered memory and RDMA would not; both are refused here, before
anything is sent. Regions that touch stay apart: one copy never spans two of them.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from daemons.transfer.backend import BadCopy, Copies, CopyTable, Integers, Region

ADDRESS_LIMIT = 1 << 63  # what every wire and numpy column here can carry


@dataclass(slots=True)
class Registered:
    """Regions by address; they never overlap."""

    regions: list[Region] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    _begins: Integers = field(default_factory=lambda: _column([0]))  # and before them nothing,
    _ends: Integers = field(default_factory=lambda: _column([0]))  # shape [1 + regions]

    def add(self, regions: Iterable[Region]) -> None:
        """Take all ``regions``, or none.

        Raises:
            ValueError: one is empty, negative, too high, or overlaps another.
        """
        merged = sorted([*self.regions, *regions])
        for region in merged:
            if region.address <= 0 or region.bytes <= 0:
                raise ValueError(f"not a region: {region}")
            if region.address + region.bytes > ADDRESS_LIMIT:
                raise ValueError(f"a region past the end of memory: {region}")
        for one, other in itertools.pairwise(merged):
            if one.address + one.bytes > other.address:
                raise ValueError(f"regions overlap: {one} and {other}")
        self.regions = merged
        self.starts = [region.address for region in merged]
        self._begins = _column([0, *self.starts])
        self._ends = _column([0, *(region.address + region.bytes for region in merged)])

    @property
    def columns(self) -> tuple[Integers, Integers]:
        """Where regions begin and end, ``[1 + regions]`` each; the first one is nothing."""
        return self._begins, self._ends

    def region_of(self, address: int, length: int, pieces: int = 1, step: int = 0) -> int:
        """Return which region holds some pieces, all of them, equal steps apart; -1: none."""
        last = address + (pieces - 1) * step
        first, end = min(address, last), max(address, last) + length
        index = bisect_right(self.starts, first) - 1
        if index >= 0 and length > 0:
            region = self.regions[index]
            if end <= region.address + region.bytes:
                return index
        return -1

    def holds(self, address: int, length: int) -> bool:
        """Tell whether ``length`` bytes from ``address`` lie in one region."""
        return self.region_of(address, length) >= 0

    def strays(self, addresses: Integers, lengths: Integers) -> Integers:
        """Return the positions of ranges that do not lie in one region, shape ``[strays]``."""
        index = np.searchsorted(self._begins, addresses, side="right") - 1
        return np.flatnonzero((index < 1) | (lengths > self._ends[index] - addresses))

    def check_sources(self, copies: Copies) -> None:
        """Refuse a write that the transport must not see.

        Raises:
            BadCopy: no bytes, an impossible target, or a source outside of the regions.
        """
        if isinstance(copies, CopyTable) and not self._suspects(copies):
            return
        for index, copy in enumerate(copies):
            if copy.bytes <= 0:
                raise BadCopy(f"copy {index} of {len(copies)} moves {copy.bytes} bytes")
            if not 0 < copy.target <= ADDRESS_LIMIT - copy.bytes:
                raise BadCopy(f"copy {index} of {len(copies)} has target {copy.target:#x}")
            if not self.holds(copy.source, copy.bytes):
                raise BadCopy(
                    f"copy {index} of {len(copies)} reads {copy.bytes} bytes at"
                    f" {copy.source:#x}, outside registered memory"
                )

    def _suspects(self, copies: CopyTable) -> bool:
        bad = (copies.bytes <= 0) | (copies.target <= 0)
        bad |= copies.target > (ADDRESS_LIMIT - 1) - copies.bytes
        return bool(bad.any()) or len(self.strays(copies.source, copies.bytes)) > 0


def _column(numbers: list[int]) -> Integers:
    return np.array(numbers, dtype=np.int64)
