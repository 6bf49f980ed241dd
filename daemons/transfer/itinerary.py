"""The copies of one write, planned before its layers are ready to go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from daemons.transfer.backend import CopyTable
from daemons.transfer.plan import Pairing, Runs
from daemons.transfer.slices import cut, joined


class Part(NamedTuple):
    """Neighbouring layers of which the same pages travel."""

    layers: range
    paired: Pairing
    runs: Runs


class Itinerary:
    """All parts of a write. What goes at once, when all layers are done, is ready to be taken."""

    def __init__(self, parts: Sequence[Part], most_bytes: int) -> None:
        """Take parts by their layers, which follow on one another; a slice has ``most_bytes``."""
        self._parts = parts
        self._most_bytes = most_bytes
        self._layers = range(parts[0].layers.start, parts[-1].layers.stop) if parts else range(0)
        self._whole = self._cut(self._layers)

    def slices(self, layers: range) -> Sequence[CopyTable]:
        """Return the copies of these layers, in slices."""
        return self._whole if layers == self._layers else self._cut(layers)

    def _cut(self, layers: range) -> list[CopyTable]:
        tables = []
        for part in self._parts:
            first = max(layers.start, part.layers.start)
            end = min(layers.stop, part.layers.stop)
            if first < end:
                tables.append(part.paired.copies(part.runs, range(first, end)))
        return cut(joined(tables), self._most_bytes)
