"""Which data-parallel rank of a prefill took a room: pure, bounded by count and by time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class DpRanks:
    """Rooms and their data-parallel ranks, oldest first.

    Source: SGLang ``disaggregation/common/conn.py`` ``room_to_dp_rank``, which is unbounded
    between two clean-ups.
    """

    keep_s: float = 120.0
    limit: int = 100_000  # the oldest give way
    _known: OrderedDict[int, tuple[int, float]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._known)

    def put(self, room: int, dp_rank: int, now_s: float) -> None:
        """Remember a room's rank; the latest word holds."""
        self._known[room] = (dp_rank, now_s + self.keep_s)
        self._known.move_to_end(room)
        while len(self._known) > self.limit:
            self._known.popitem(last=False)

    def get(self, rooms: Iterable[int], now_s: float) -> dict[int, int]:
        """Return the ranks of those rooms that are known."""
        found = ((room, self._known.get(room)) for room in rooms)
        return {room: known[0] for room, known in found if known and known[1] > now_s}

    def tick(self, now_s: float) -> None:
        """Forget what is too old."""
        while self._known and next(iter(self._known.values()))[1] <= now_s:
            self._known.popitem(last=False)
