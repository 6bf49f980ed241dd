"""Warnings that strangers can provoke, and so fill no disk: each kind is told once in a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from daemons.runtime.log import Logger, logger

EVERY_S = 60.0


@dataclass(slots=True)
class Complaints:
    """Tells each event with each reason at once, then at most every ``every_s``, with a count.

    ``event`` and ``reason`` come from closed lists of ours, never from outside.
    """

    every_s: float = EVERY_S
    clock: Callable[[], float] = time.monotonic
    log: Logger = field(default_factory=logger)
    _told_s: dict[tuple[str, str], float] = field(default_factory=dict)
    _untold: dict[tuple[str, str], int] = field(default_factory=dict)

    def say(self, event: str, reason: str, facts: Callable[[], dict[str, object]]) -> bool:
        """Warn, or count; ``facts`` is called only for a warning. Says whether it was told."""
        kind, now_s = (event, reason), self.clock()
        told_s = self._told_s.get(kind)
        if told_s is not None and now_s - told_s < self.every_s:
            self._untold[kind] = self._untold.get(kind, 0) + 1
            return False
        self._told_s[kind] = now_s
        self.log.warning(event, reason=reason, untold=self._untold.pop(kind, 0), **facts())
        return True
