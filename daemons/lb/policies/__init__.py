"""Which pair gets a request: one seam, one file per policy, one line here for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from daemons.lb.fleet import Life, Pair, Pick
from daemons.lb.policies.least_rooms import LeastRooms
from daemons.lb.policies.round_robin import RoundRobin


class Policy(Protocol):
    """Chooses a pair; remembers what it likes, but touches nothing outside itself."""

    def pick(self, pairs: Sequence[Pair], rooms: Mapping[Life, int]) -> Pick:
        """Return one of ``pairs`` (never empty); ``rooms`` counts what each life has in flight."""
        ...


POLICIES: Mapping[str, Callable[[], Policy]] = {
    "least_rooms": LeastRooms,
    "round_robin": RoundRobin,
}
