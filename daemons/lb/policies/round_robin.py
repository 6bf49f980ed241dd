"""Each worker in turn: the pair whose prefill, then decode, was picked longest ago."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from daemons.lb.fleet import Life, Pair, Pick


@dataclass(slots=True)
class RoundRobin:
    """Remembers for each worker among the candidates at which pick it was last chosen."""

    _picks: int = 0
    _last: dict[str, int] = field(default_factory=dict)

    def pick(self, pairs: Sequence[Pair], rooms: Mapping[Life, int]) -> Pick:
        """Return the pair that has waited longest."""
        chosen = min(pairs, key=self._turn)
        self._picks += 1
        self._last[chosen.prefill.name] = self._last[chosen.decode.name] = self._picks
        if len(self._last) > 4 * len(pairs) + 4:  # names that are long gone
            names = {worker.name for pair in pairs for worker in (pair.prefill, pair.decode)}
            self._last = {name: at for name, at in self._last.items() if name in names}
        return Pick(chosen, "its turn")

    def _turn(self, pair: Pair) -> tuple[int, int]:
        return self._last.get(pair.prefill.name, 0), self._last.get(pair.decode.name, 0)
