"""Memory of rooms that are over while their writer may still write.

It is released on knowledge, never on time alone: the writer says that it is done (CLEAN: at
once), or the writer cut its connection or is proven dead (then what was in sockets lands within
``settle_s``, and only then). Until there is an answer the abort is repeated, for ever if need be.

``settle_s`` is time in which this process runs: while it is frozen nobody reads its sockets. So a
stretch without a look counts for at most a ``LOOKS``-th of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.protocol.causes import Failure
from daemons.protocol.handshake import Fence
from daemons.protocol.ids import PeerId, RoomKey

ABORT_EVERY_S = 1.0
LOOKS = 8


@dataclass(slots=True)
class Held:
    """What a room left behind."""

    peer: PeerId
    pages: tuple[int, ...]
    row: int
    failure: Failure
    asked_s: float
    settles_s: float | None = None  # of our waking time, when released; None: no answer yet
    window: tuple[int, ...] = ()  # window pages


@dataclass(slots=True)
class Quarantine:
    """Rooms that wait for their writer to be done."""

    settle_s: float
    rooms: dict[RoomKey, Held] = field(default_factory=dict)
    _awake_s: float = 0.0
    _looked_s: float | None = None

    def answered(self, key: RoomKey, sender: PeerId, fence: Fence, now: float) -> None:
        """Note that the writer of a room says it is done."""
        held = self.rooms.get(key)
        if held is None or held.peer != sender or held.settles_s is not None:
            return
        awake_s = self._awake(now)
        held.settles_s = awake_s if fence is Fence.CLEAN else awake_s + self.settle_s

    def died(self, peer: PeerId, now: float) -> None:
        """Note the proof that a writer is dead."""
        for held in self.rooms.values():
            if held.peer == peer and held.settles_s is None:
                held.settles_s = self._awake(now) + self.settle_s

    def settled(self, now: float) -> list[tuple[RoomKey, Held]]:
        """Take out what may be free now."""
        awake_s = self._awake(now)
        over = [
            (key, held)
            for key, held in self.rooms.items()
            if held.settles_s is not None and held.settles_s <= awake_s
        ]
        for key, _ in over:
            del self.rooms[key]
        return over

    def unanswered(self, now: float) -> list[tuple[RoomKey, Held]]:
        """Return rooms whose abort is to be repeated, and count it as repeated."""
        due = [
            (key, held)
            for key, held in self.rooms.items()
            if held.settles_s is None and now - held.asked_s >= ABORT_EVERY_S
        ]
        for _, held in due:
            held.asked_s = now
        return due

    def _awake(self, now: float) -> float:
        passed_s = now - self._looked_s if self._looked_s is not None else 0.0
        self._looked_s = now
        self._awake_s += min(passed_s, self.settle_s / LOOKS)
        return self._awake_s
