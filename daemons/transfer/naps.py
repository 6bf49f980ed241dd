"""How long to sleep between two questions after bytes that are on their way.

While bytes move, half of the time that the rest will need at the rate so far: so few questions are
asked, and the last of them comes late by a part of what was left. While nothing moves, twice as
long as before.
"""

from __future__ import annotations

SHORTEST_S, LONGEST_S = 0.00005, 0.001
SHARE = 0.5  # of the time that is left, to be slept


class Naps:
    """The naps of one write."""

    def __init__(self, now_s: float) -> None:
        self._begun_s = now_s
        self._moved_bytes = 0
        self._is_moving = False  # since the last nap
        self._still_s = SHORTEST_S

    def moved(self, some_bytes: int) -> None:
        """Note that so many have arrived."""
        self._moved_bytes += some_bytes
        self._is_moving = True

    def next_s(self, now_s: float, left_bytes: int) -> float:
        """Return how long to sleep now, with so many bytes begun and not arrived."""
        if self._is_moving:
            self._is_moving, self._still_s = False, SHORTEST_S
            left_s = left_bytes * (now_s - self._begun_s) / self._moved_bytes
            return min(max(SHARE * left_s, SHORTEST_S), LONGEST_S)
        nap_s, self._still_s = self._still_s, min(2 * self._still_s, LONGEST_S)
        return nap_s
