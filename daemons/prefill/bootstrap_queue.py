"""Prefill, stage 1 of 3: a request waits for decode to say where to write, or the reverse.

The two halves of a room come in any order; destinations that nobody claims are bounded in
number and time, and every one of them is answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.prefill.request import Request
from daemons.protocol.handshake import Destination
from daemons.protocol.ids import RoomKey


@dataclass(slots=True)
class BootstrapQueue:
    """Halves of rooms."""

    max_orphans: int
    rooms: dict[RoomKey, Request] = field(default_factory=dict)
    orphans: dict[RoomKey, tuple[Destination, float]] = field(default_factory=dict)

    def claim(self, key: RoomKey) -> Destination | None:
        """Take out the destination that came before its request."""
        orphan = self.orphans.pop(key, None)
        return orphan[0] if orphan else None

    def keep_orphan(self, key: RoomKey, destination: Destination, now: float) -> bool:
        """Keep a destination whose request has not come; False when there is no place."""
        if key not in self.orphans and len(self.orphans) >= self.max_orphans:
            return False
        self.orphans.setdefault(key, (destination, now))
        return True

    def expired_orphans(self, now: float, keep_s: float) -> list[Destination]:
        """Take out the destinations that waited ``keep_s`` in vain, oldest first."""
        late = [key for key, (_, at) in self.orphans.items() if now - at >= keep_s]
        return [self.orphans.pop(key)[0] for key in late]
