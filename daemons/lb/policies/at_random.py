"""Any worker, each as likely as another: needs no memory and no view of the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from daemons.lb.fleet import Candidate, Wish
from daemons.lb.policies.choice import Choice


@dataclass(slots=True)
class AtRandom:
    """Draws."""

    random: Random

    def pick(self, candidates: Sequence[Candidate], wish: Wish) -> Choice:
        """Return a worker that was drawn."""
        return Choice(self.random.choice(candidates).worker, "drawn")
