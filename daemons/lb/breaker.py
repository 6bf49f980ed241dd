"""Circuit breakers: a worker that keeps failing rests for a while, then one request tries; pure.

- Only a worker that is to blame for a failure gets it on its account; what a client did, or what
  overload did, is nobody's.
- closed -> open after ``in_a_row`` failures, or when half of the last outcomes are failures;
  open -> half-open after ``rest_s``, which doubles with each opening; half-open lets one request
  through: its success closes, its failure opens again.
- A breaker is a preference: who chooses uses a resting worker when there is no other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from daemons.lb.fleet import Life

WINDOW = 20  # outcomes that are remembered of each worker
ENOUGH = 10  # outcomes before their share says anything
SHARE = 0.5  # of failures among them
LONGEST = 8  # times rest_s


class Circuit(StrEnum):
    """What may go through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(slots=True)
class Breaker:
    """The account of one life."""

    outcomes: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))  # good or not
    in_a_row: int = 0  # failures
    openings: int = 0  # since it was last closed
    rests_until_s: float = 0.0
    probing: bool = False  # the one request of half-open is under way

    def is_bad(self, limit: int) -> bool:
        """Say whether the account is reason to open."""
        failures = len(self.outcomes) - sum(self.outcomes)
        is_outlier = len(self.outcomes) >= ENOUGH and failures >= SHARE * len(self.outcomes)
        return self.in_a_row >= limit or is_outlier


@dataclass(slots=True)
class Breakers:
    """One for each life that has failed; a replacement begins without a past."""

    in_a_row: int
    rest_s: float
    accounts: dict[Life, Breaker] = field(default_factory=dict)

    def circuit(self, life: Life, now_s: float) -> Circuit:
        """Return the state of a worker's breaker."""
        breaker = self.accounts.get(life)
        if breaker is None or not breaker.openings:
            return Circuit.CLOSED
        return Circuit.OPEN if now_s < breaker.rests_until_s else Circuit.HALF_OPEN

    def lets(self, life: Life, now_s: float) -> bool:
        """Say whether a request may go there."""
        circuit = self.circuit(life, now_s)
        if circuit is Circuit.HALF_OPEN:
            return not self.accounts[life].probing
        return circuit is Circuit.CLOSED

    def took(self, life: Life, now_s: float) -> None:
        """A request goes there."""
        if self.accounts and self.circuit(life, now_s) is Circuit.HALF_OPEN:
            self.accounts[life].probing = True

    def good(self, life: Life) -> None:
        """A request ended well there: a breaker that is not closed closes."""
        if (breaker := self.accounts.get(life)) is None:
            return
        if breaker.openings:
            del self.accounts[life]
            return
        breaker.outcomes.append(True)
        breaker.in_a_row = 0

    def bad(self, life: Life, now_s: float) -> bool:
        """A request failed because of it; say whether that opened the breaker."""
        breaker = self.accounts.setdefault(life, Breaker())
        breaker.outcomes.append(False)
        breaker.in_a_row += 1
        breaker.probing = False
        if now_s < breaker.rests_until_s or not (breaker.openings or breaker.is_bad(self.in_a_row)):
            return False
        breaker.rests_until_s = now_s + self.rest_s * min(2**breaker.openings, LONGEST)
        breaker.openings += 1
        return True

    def neither(self, life: Life) -> None:
        """A request ended in a way that says nothing about the worker."""
        if (breaker := self.accounts.get(life)) is not None:
            breaker.probing = False

    def keep(self, lives: set[Life]) -> None:
        """Forget all other lives."""
        self.accounts = {life: one for life, one in self.accounts.items() if life in lives}
