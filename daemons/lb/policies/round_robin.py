"""Each worker in turn: the one that was picked longest ago."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from daemons.lb.fleet import Candidate, Wish
from daemons.lb.policies.choice import Choice
from daemons.lb.policies.turns import Turns


@dataclass(slots=True)
class RoundRobin:
    """Looks at nothing but its own memory."""

    _turns: Turns = field(default_factory=Turns)

    def pick(self, candidates: Sequence[Candidate], wish: Wish) -> Choice:
        """Return the worker that has waited longest."""
        return Choice(self._turns.next(candidates).worker, "its turn")
