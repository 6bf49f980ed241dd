"""The pair with the fewest rooms in flight on both sides together; equal ones take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from daemons.lb.fleet import Life, Pair, Pick
from daemons.lb.policies.round_robin import RoundRobin


@dataclass(slots=True)
class LeastRooms:
    """Looks at the load only; turns are kept for ties."""

    _ties: RoundRobin = field(default_factory=RoundRobin)

    def pick(self, pairs: Sequence[Pair], rooms: Mapping[Life, int]) -> Pick:
        """Return a pair with the least load."""
        loads = [_load(pair, rooms) for pair in pairs]
        least = min(loads)
        equal = [pair for pair, load in zip(pairs, loads, strict=True) if load == least]
        pair = self._ties.pick(equal, rooms).pair
        told = ", ".join(
            f"{worker.name} {rooms.get(worker.life, 0)}" for worker in (pair.prefill, pair.decode)
        )
        return Pick(pair, f"least rooms: {told}")


def _load(pair: Pair, rooms: Mapping[Life, int]) -> int:
    return rooms.get(pair.prefill.life, 0) + rooms.get(pair.decode.life, 0)
