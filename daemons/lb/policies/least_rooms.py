"""The worker with the fewest rooms in flight; equal ones take turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from daemons.lb.fleet import Candidate, Wish
from daemons.lb.policies.choice import Choice
from daemons.lb.policies.turns import Turns


@dataclass(slots=True)
class LeastRooms:
    """Looks at the load only; turns are kept for ties."""

    _turns: Turns = field(default_factory=Turns)

    def pick(self, candidates: Sequence[Candidate], wish: Wish) -> Choice:
        """Return a worker with the fewest rooms."""
        chosen = self._turns.least(candidates, lambda one: one.rooms)
        return Choice(chosen.worker, f"least rooms: {chosen.rooms}")
