"""Two workers are drawn, the one with fewer rooms gets it.

Nearly as even as looking at all, and several balancers that do not know each other's rooms do not
run to the same worker. Source: Mitzenmacher, "The Power of Two Choices in Randomized Load
Balancing", 2001.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from daemons.lb.fleet import Candidate, Wish
from daemons.lb.policies.choice import Choice


@dataclass(slots=True)
class PowerOfTwo:
    """Draws two different ones where there are two."""

    random: Random

    def pick(self, candidates: Sequence[Candidate], wish: Wish) -> Choice:
        """Return the less loaded of two."""
        drawn = self.random.sample(candidates, min(2, len(candidates)))
        chosen = min(drawn, key=lambda one: one.rooms)
        told = ", ".join(f"{one.worker.name} {one.rooms}" for one in drawn)
        return Choice(chosen.worker, f"fewer rooms of two: {told}")
