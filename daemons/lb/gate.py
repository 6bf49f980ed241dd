"""Requests that find no place wait here, in a fair order; beyond that they are refused.

- A refusal early is better than a timer that fires late: the client may try elsewhere.
- Clients take turns, whoever has sent how many; nobody of one client overtakes another of it, so a
  large request gets its place too. Source: start-time fair queueing, Goyal et al. 1996, with equal
  shares.
- Where the queue is full, the client with the most waiting gives way to one with fewer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

LOOK_S = 0.25  # the first in the queue looks again, since workers come and go too

T = TypeVar("T")


class QueueIsFull(Exception):
    """As many as may wait are waiting."""


class WaitedTooLong(Exception):
    """No place became free in time."""


@dataclass(eq=False, slots=True)
class Waiter:
    """One request in the queue."""

    who: str
    turn: int  # clients' turns are counted; less is sooner
    look: asyncio.Event = field(default_factory=asyncio.Event)
    evicted: bool = False


@dataclass(slots=True)
class Gate:
    """The queue in front of the pairs."""

    places: int  # requests that may wait
    patience_s: float
    waiting: list[Waiter] = field(default_factory=list)  # in the order in which they came
    turn: int = 0  # of whoever left the queue last

    async def enter(self, take: Callable[[], T | None], patience_s: float, who: str = "") -> T:
        """Return what ``take`` gives as soon as it gives something and it is our turn.

        Nothing else runs between ``take`` and the return. What ``take`` raises ends the wait.

        Raises:
            QueueIsFull: at once, or when somebody with fewer waiting needed the place.
            WaitedTooLong: after ``patience_s``, or the queue's own if that is shorter.
        """
        if not self.waiting and (taken := take()) is not None:
            return taken
        waiter = self._queued(who)
        try:
            async with asyncio.timeout(min(patience_s, self.patience_s)):
                while self._first() is not waiter or (taken := take()) is None:
                    await _looked(waiter.look)
                    if waiter.evicted:
                        raise QueueIsFull
            self.turn = max(self.turn, waiter.turn)
            return taken
        except TimeoutError:
            raise WaitedTooLong from None
        finally:
            if not waiter.evicted:
                self.waiting.remove(waiter)
            self.opened()

    def opened(self) -> None:
        """Tell the first in the queue that a place may be free."""
        if self.waiting:
            self._first().look.set()

    def _first(self) -> Waiter:
        return min(self.waiting, key=lambda one: one.turn)  # of equal ones who came first

    def _queued(self, who: str) -> Waiter:
        """Put a request of ``who`` into the queue."""
        waiting = Counter(one.who for one in self.waiting)
        if len(self.waiting) >= self.places:
            self._make_way(who, waiting)
        last = max((one.turn for one in self.waiting if one.who == who), default=self.turn)
        waiter = Waiter(who, max(last, self.turn) + 1)
        self.waiting.append(waiter)
        return waiter

    def _make_way(self, who: str, waiting: Counter[str]) -> None:
        """Send the last request of the client with the most away, if ``who`` has fewer by two."""
        if not waiting:
            raise QueueIsFull
        greediest, most = waiting.most_common(1)[0]
        if most < waiting[who] + 2:
            raise QueueIsFull
        last = next(one for one in reversed(self.waiting) if one.who == greediest)
        self.waiting.remove(last)
        last.evicted = True
        last.look.set()


async def _looked(turn: asyncio.Event) -> None:
    """Wait until told, or for a moment."""
    turn.clear()
    waiter = asyncio.ensure_future(turn.wait())
    try:
        await asyncio.wait({waiter}, timeout=LOOK_S)
    finally:
        waiter.cancel()
