"""The copies of one write, planned before its layers are ready to go.

All of a write is planned at once, its next group of layers when somebody says which that will be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from daemons.transfer.backend import CopyTable
from daemons.transfer.plan import NOTHING, Pairing, Runs
from daemons.transfer.slices import cut, joined


class Part(NamedTuple):
    """Neighbouring layers of which the same pages travel."""

    layers: range
    paired: Pairing
    runs: Runs

    def copies(self, layers: range, whole: CopyTable) -> CopyTable:
        """Return the copies of some of the layers, out of those of all."""
        if whole.combs is None:
            return self.paired.copies(self.runs, layers)
        first, _ = self.paired.span(self.layers)
        begin, end = self.paired.span(layers)
        if begin == end:
            return NOTHING
        return CopyTable.of([comb.part(begin - first, end - first) for comb in whole.combs])


class Itinerary:
    """All parts of a write."""

    def __init__(self, parts: Sequence[Part], most_bytes: int) -> None:
        """Take parts by their layers, which follow on one another; a slice has ``most_bytes``."""
        self._parts = parts
        self._most_bytes = most_bytes
        self._wholes = [part.paired.copies(part.runs, part.layers) for part in parts]
        layers = range(parts[0].layers.start, parts[-1].layers.stop) if parts else range(0)
        self._all = layers, cut(joined(self._wholes), most_bytes)
        self._next = self._all

    def expect(self, layers: range) -> None:
        """Plan a group that will be asked for."""
        self._next = self._all if layers == self._all[0] else (layers, self._cut(layers))

    def slices(self, layers: range) -> Sequence[CopyTable]:
        """Return the copies of these layers, in slices."""
        planned, slices = self._next
        if planned == layers:
            return slices
        planned, slices = self._all
        return slices if planned == layers else self._cut(layers)

    def _cut(self, layers: range) -> list[CopyTable]:
        tables = []
        for part, whole in zip(self._parts, self._wholes, strict=True):
            first = max(layers.start, part.layers.start)
            end = min(layers.stop, part.layers.stop)
            if first < end:
                tables.append(part.copies(range(first, end), whole))
        return cut(joined(tables), self._most_bytes)
