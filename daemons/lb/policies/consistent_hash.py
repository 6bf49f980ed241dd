"""Requests of one session go to one worker, whoever else comes or leaves.

A worker that is much busier than the others passes sessions on to the next one of their order, so
that one session cannot drown it. Requests without a session go where the fewest rooms are.
Source: rendezvous hashing, Thaler and Ravishankar 1998; bounded loads, Mirrokni et al. 2018.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from daemons.lb.fleet import Candidate, Wish
from daemons.lb.policies.choice import Choice
from daemons.lb.policies.turns import Turns

BOUND = 1.25  # times the average load
SLACK_ROOMS = 8  # few rooms are no load


@dataclass(slots=True)
class ConsistentHash:
    """Remembers nothing of sessions: their order of workers follows from the names."""

    _turns: Turns = field(default_factory=Turns)

    def pick(self, candidates: Sequence[Candidate], wish: Wish) -> Choice:
        """Return the first worker of the session's order that is not far too busy."""
        if not wish.session:
            chosen = self._turns.least(candidates, lambda one: one.rooms)
            return Choice(chosen.worker, f"no session, least rooms: {chosen.rooms}")
        order = sorted(candidates, key=lambda one: _weight(wish.session, one), reverse=True)
        average = sum(one.rooms for one in candidates) / len(candidates)
        limit = max(average * BOUND, average + SLACK_ROOMS)
        place = next(n for n, one in enumerate(order) if one.rooms <= limit)
        because = "of its session" if not place else f"of its session, {place} are too busy"
        return Choice(order[place].worker, because)


def _weight(session: str, one: Candidate) -> bytes:
    named = f"{one.worker.name}\0{session}".encode(errors="surrogatepass")
    return hashlib.blake2b(named, digest_size=8).digest()
