"""Requests that find no place wait here for a moment, in order; beyond that they are refused.

A refusal early is better than a timer that fires late: the client may try elsewhere. Nobody
overtakes, so a large request gets its place too; how long anybody waits is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

LOOK_S = 0.25  # the first in the queue looks again, since workers come and go too

T = TypeVar("T")


class QueueIsFull(Exception):
    """As many as may wait are waiting."""


class WaitedTooLong(Exception):
    """No place became free in time."""


@dataclass(slots=True)
class Gate:
    """The queue in front of the pairs."""

    places: int  # requests that may wait
    patience_s: float
    waiting: deque[asyncio.Event] = field(default_factory=deque)

    async def enter(self, take: Callable[[], T | None], patience_s: float) -> T:
        """Return what ``take`` gives as soon as it gives something and it is our turn.

        Nothing else runs between ``take`` and the return. What ``take`` raises ends the wait.

        Raises:
            QueueIsFull: at once.
            WaitedTooLong: after ``patience_s``, or the queue's own if that is shorter.
        """
        if not self.waiting and (taken := take()) is not None:
            return taken
        if len(self.waiting) >= self.places:
            raise QueueIsFull
        turn = asyncio.Event()
        self.waiting.append(turn)
        try:
            async with asyncio.timeout(min(patience_s, self.patience_s)):
                while self.waiting[0] is not turn or (taken := take()) is None:
                    await _looked(turn)
            return taken
        except TimeoutError:
            raise WaitedTooLong from None
        finally:
            self.waiting.remove(turn)
            self.opened()

    def opened(self) -> None:
        """Tell the first in the queue that a place may be free."""
        if self.waiting:
            self.waiting[0].set()


async def _looked(turn: asyncio.Event) -> None:
    """Wait until told, or for a moment."""
    turn.clear()
    waiter = asyncio.ensure_future(turn.wait())
    try:
        await asyncio.wait({waiter}, timeout=LOOK_S)
    finally:
        waiter.cancel()
