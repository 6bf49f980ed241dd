"""Which worker of a role gets a request: one seam, one file per policy, one line here for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

from daemons.lb.fleet import Candidate, Wish
from daemons.lb.policies.at_random import AtRandom
from daemons.lb.policies.choice import Choice
from daemons.lb.policies.consistent_hash import ConsistentHash
from daemons.lb.policies.credits import ByCredits
from daemons.lb.policies.least_rooms import LeastRooms
from daemons.lb.policies.least_tokens import LeastTokens
from daemons.lb.policies.power_of_two import PowerOfTwo
from daemons.lb.policies.prefix_aware import PrefixAware
from daemons.lb.policies.round_robin import RoundRobin


class Policy(Protocol):
    """Chooses a worker; remembers what it likes, but touches nothing outside itself."""

    def pick(self, candidates: Sequence[Candidate], wish: Wish) -> Choice:
        """Return one of ``candidates`` (never empty, one role, in name order)."""
        ...


POLICIES: Mapping[str, Callable[[Random], Policy]] = {
    "consistent_hash": lambda _: ConsistentHash(),
    "credits": lambda _: ByCredits(),
    "least_rooms": lambda _: LeastRooms(),
    "least_tokens": lambda _: LeastTokens(),
    "power_of_two": PowerOfTwo,
    "prefix_aware": lambda _: PrefixAware(),
    "random": AtRandom,
    "round_robin": lambda _: RoundRobin(),
}
