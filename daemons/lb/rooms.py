"""Drawing rooms: 53 bits, never 0, and never one that is in use here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from daemons.protocol.ids import ROOM_LIMIT

ROOM_BITS = ROOM_LIMIT.bit_length() - 1


@dataclass(slots=True)
class Rooms:
    """The rooms that are live; ``bits(n)`` gives ``n`` random bits."""

    bits: Callable[[int], int]
    live: set[int] = field(default_factory=set)

    def draw(self, count: int) -> list[int]:
        """Return ``count`` new rooms, which are live from now on."""
        drawn: list[int] = []
        while len(drawn) < count:
            room = self.bits(ROOM_BITS)
            if room and room not in self.live:
                self.live.add(room)
                drawn.append(room)
        return drawn

    def end(self, rooms: Iterable[int]) -> None:
        """Make rooms drawable again; ending twice is once."""
        self.live.difference_update(rooms)
