"""Decode, beside stage 4: rooms that left the batch, with their pages kept by the host.

A room is here while its pages are copied out, lie in host memory, and are copied back. It comes
back oldest first and before anybody new is admitted; its text goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from daemons.decode.request import Request
from daemons.kv.ledger import Ledger
from daemons.protocol.ids import RoomKey


@dataclass(slots=True)
class RetractedQueue:
    """Rooms out of the batch."""

    host_pages: int  # that may be kept at once
    pages: Ledger
    rooms: dict[RoomKey, Request] = field(default_factory=dict)

    @property
    def coming(self) -> int:
        """Pages of the device that are free once the copies under way are done."""
        return sum(self._leaves(request) for request in self.rooms.values() if request.kept)

    @property
    def returning(self) -> int:
        """Rooms whose pages are copied back."""
        return sum(not request.kept for request in self.rooms.values())

    def next(self) -> Request | None:
        """Return the room that comes back first, None while it is not wholly on the host."""
        kept = [request for request in self.rooms.values() if request.kept]
        oldest = min(kept, key=_age, default=None)
        return None if oldest is None or oldest.in_steps else oldest

    def _leaves(self, request: Request) -> int:
        """Return how many pages a room leaves: its own, and those that it reads alone."""
        read = request.lease.pages
        return len(request.pages) - sum(len(self.pages.readers(page)) > 1 for page in read)


def victim(rooms: Iterable[Request]) -> Request | None:
    """Return the room to retract: of the fewest output tokens, then the newest; one stays."""
    candidates = sorted(rooms, key=lambda request: (len(request.output), *_newest(request)))
    return candidates[0] if len(candidates) > 1 else None


def _age(request: Request) -> tuple[float, RoomKey]:
    return request.submitted_s, request.key


def _newest(request: Request) -> tuple[float, int, int]:
    return -request.submitted_s, -request.key.room, -request.key.attempt
