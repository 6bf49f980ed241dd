"""What decodes say another room may count on, and what we have sent them since: pure.

It is a preference, never a fence: tokens of a text are estimated, and what a decode said holds for
``FRESH_S``. The worker itself admits exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.lb.fleet import Life

FRESH_S = 3.0


@dataclass(slots=True)
class Heard:
    """The last word of one decode."""

    tokens: int  # that it could still promise
    at_s: float


@dataclass(slots=True)
class Credits:
    """By life, so that a replacement begins unknown."""

    heard: dict[Life, Heard] = field(default_factory=dict)

    def hear(self, life: Life, tokens: int, now_s: float) -> None:
        """Take a decode's word."""
        self.heard[life] = Heard(tokens, now_s)

    def spend(self, life: Life, tokens: int) -> None:
        """Count rooms that were sent since."""
        if (heard := self.heard.get(life)) is not None:
            heard.tokens -= tokens

    def lacks(self, life: Life, tokens: int, now_s: float) -> bool:
        """Say whether a decode is known to have less; of what it said long ago nothing is known."""
        free = self.free(life, now_s)
        return free is not None and free < tokens

    def free(self, life: Life, now_s: float) -> int | None:
        """Return the tokens that a decode can still promise, None when that is not known."""
        heard = self.heard.get(life)
        return None if heard is None or now_s - heard.at_s >= FRESH_S else heard.tokens

    def keep(self, lives: set[Life]) -> None:
        """Forget all other lives."""
        self.heard = {life: heard for life, heard in self.heard.items() if life in lives}
