"""Rooms that are over, remembered for a time, since messages about them come in any order.

Bounded without forgetting too early: when it is full it takes no more, and says so.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from daemons.protocol.ids import RoomKey

T = TypeVar("T")


@dataclass(slots=True)
class Tombstones(Generic[T]):
    """What is to be said about each ended room, kept for ``keep_s``."""

    keep_s: float
    limit: int = 100_000
    _stones: OrderedDict[RoomKey, tuple[float, T]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._stones)

    def put(self, key: RoomKey, what: T, now: float) -> bool:
        """Remember ``what``; False when there is no place, and nothing may be promised."""
        if key not in self._stones and len(self._stones) >= self.limit:
            return False
        self._stones[key] = (now, what)
        self._stones.move_to_end(key)
        return True

    def get(self, key: RoomKey) -> T | None:
        """Return what was remembered about a room."""
        stone = self._stones.get(key)
        return stone[1] if stone else None

    def expire(self, now: float) -> None:
        """Forget the oldest ones whose time is over."""
        while self._stones:
            key, (at, _) = next(iter(self._stones.items()))
            if now - at < self.keep_s:
                return
            del self._stones[key]
