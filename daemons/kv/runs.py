"""Free indices kept as runs of neighbours, so that what is taken together lies together.

Neighbouring pages merge into one copy on the wire; a page by itself costs as much as a long run.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable


class FreeRuns:
    """The free ones of ``0 .. size - 1``, as a sorted list of ``(start, length)``."""

    def __init__(self, size: int) -> None:
        self._runs: list[tuple[int, int]] = [(0, size)] if size else []
        self._count = size

    def __len__(self) -> int:
        return self._count

    def runs(self) -> tuple[tuple[int, int], ...]:
        """Return ``(start, length)`` of each run, sorted, no two of them neighbours."""
        return tuple(self._runs)

    def take(self, count: int) -> tuple[int, ...]:
        """Take ``count`` indices in as few runs as can be: the tightest fit, else the longest.

        Raises:
            ValueError: fewer are free.
        """
        if count > self._count:
            raise ValueError(f"{count} wanted, {self._count} free")
        taken: list[int] = []
        while len(taken) < count:
            taken.extend(self._take_run(count - len(taken)))
        return tuple(taken)

    def give(self, indices: Iterable[int]) -> None:
        """Take back indices that are not free, joining them with their neighbours."""
        for start, length in joined(indices):
            self._give_run(start, length)

    def _take_run(self, wanted: int) -> range:
        fitting = [run for run in self._runs if run[1] >= wanted]
        start, length = (
            min(fitting, key=lambda run: (run[1], run[0]))
            if fitting
            else max(self._runs, key=lambda run: (run[1], -run[0]))
        )
        at = bisect_left(self._runs, (start, length))
        used = min(wanted, length)
        if used == length:
            del self._runs[at]
        else:
            self._runs[at] = (start + used, length - used)
        self._count -= used
        return range(start, start + used)

    def _give_run(self, start: int, length: int) -> None:
        self._count += length
        at = bisect_left(self._runs, (start, 0))
        if at < len(self._runs) and self._runs[at][0] == start + length:
            length += self._runs.pop(at)[1]
        if at > 0 and sum(self._runs[at - 1]) == start:
            at -= 1
            before, before_length = self._runs.pop(at)
            start, length = before, before_length + length
        insort(self._runs, (start, length))


def joined(indices: Iterable[int]) -> list[tuple[int, int]]:
    """Return ``(start, length)`` of the runs of neighbours in ``indices``, sorted by start."""
    runs: list[tuple[int, int]] = []
    for index in sorted(indices):
        if runs and sum(runs[-1]) == index:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return runs


def pages_for(tokens: int, page_size: int) -> int:
    """Return how many pages ``tokens`` need."""
    return -(-tokens // page_size)
