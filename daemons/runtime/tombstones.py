"""Rooms that are over, remembered for a time, since messages about them come in any order.

Rooms that were here are always remembered: how many there are is ours to say. Those that only
others speak of are bounded; when there are too many nothing more is promised about them.
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
    limit: int = 100_000  # of rooms that were never here
    _stones: OrderedDict[RoomKey, tuple[float, T]] = field(default_factory=OrderedDict)
    _strangers: set[RoomKey] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._stones)

    def put(self, key: RoomKey, what: T, now: float) -> None:
        """Remember how a room of ours ended."""
        self._strangers.discard(key)
        self._stones[key] = (now, what)
        self._stones.move_to_end(key)

    def put_stranger(self, key: RoomKey, what: T, now: float) -> bool:
        """Remember a room that was never here; False when there is no place."""
        if key not in self._strangers and len(self._strangers) >= self.limit:
            return False
        self.put(key, what, now)
        self._strangers.add(key)
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
            self._strangers.discard(key)
