"""For decodes: the fewest running rooms, then the most memory that it can still promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from daemons.lb.fleet import Candidate, Wish
from daemons.lb.policies.choice import Choice
from daemons.lb.policies.turns import Turns

STEP_TOKENS = 1024  # what differs less is equal: it is old by up to a second


@dataclass(slots=True)
class ByCredits:
    """Who is known to lack memory for the request comes last, and was left out where possible.

    Rooms first, since each running room makes every step of all others longer.
    """

    _turns: Turns = field(default_factory=Turns)

    def pick(self, candidates: Sequence[Candidate], wish: Wish) -> Choice:
        """Return a worker with few rooms and much free memory."""
        calm = candidates
        if len(candidates) > 1:
            enough = [one for one in candidates if not _lacks(one, wish)] or candidates
            fewest = min(one.rooms for one in enough)
            calm = [one for one in enough if one.rooms == fewest]
        chosen = self._turns.least(calm, lambda one: -((one.free_tokens or 0) // STEP_TOKENS))
        free = "" if chosen.free_tokens is None else f", {chosen.free_tokens} tokens free"
        return Choice(chosen.worker, f"fewest rooms: {chosen.rooms}{free}")


def _lacks(one: Candidate, wish: Wish) -> bool:
    return one.free_tokens is not None and one.free_tokens < wish.tokens
