"""The worker with the fewest tokens in flight, so that one long prompt counts as what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from daemons.lb.fleet import Candidate, Wish
from daemons.lb.policies.choice import Choice
from daemons.lb.policies.turns import Turns


@dataclass(slots=True)
class LeastTokens:
    """Tokens are an estimate: of prompts from their bytes, of texts from what was asked for."""

    _turns: Turns = field(default_factory=Turns)

    def pick(self, candidates: Sequence[Candidate], wish: Wish) -> Choice:
        """Return a worker with the fewest tokens."""
        chosen = self._turns.least(candidates, lambda one: one.tokens)
        return Choice(chosen.worker, f"least tokens: {chosen.tokens}")
