"""The least of several, by a measure; equal ones by their pair's rate, then in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from daemons.lb.fleet import Candidate

NAMES_LIMIT = 4  # times as many names as candidates are remembered
ALIKE = 0.8  # rates that differ less are equal: they are measured


@dataclass(slots=True)
class Turns:
    """Remembers for each worker at which pick it was last chosen."""

    _picks: int = 0
    _last: dict[str, int] = field(default_factory=dict)

    def least(
        self, candidates: Sequence[Candidate], measure: Callable[[Candidate], float]
    ) -> Candidate:
        """Return the candidate with the least measure; among equal ones whose turn it is."""
        if len(candidates) == 1:
            return self.next(candidates)
        measured = [(measure(one), one) for one in candidates]
        least = min(value for value, _ in measured)
        equal = [one for value, one in measured if value == least]
        fastest = max(one.rate for one in equal)
        return self.next([one for one in equal if one.rate >= fastest * ALIKE])

    def next(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate that was chosen longest ago."""
        chosen = candidates[0]
        if len(candidates) > 1:
            chosen = min(candidates, key=lambda one: self._last.get(one.worker.name, 0))
        self._picks += 1
        self._last[chosen.worker.name] = self._picks
        if len(self._last) > NAMES_LIMIT * (len(candidates) + 1):  # names that are long gone
            names = {one.worker.name for one in candidates}
            self._last = {name: at for name, at in self._last.items() if name in names}
        return chosen
