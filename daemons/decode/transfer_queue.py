"""Decode, stage 2 of 4: prefill knows where to write, and we wait for the row to be there."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.decode.request import Request
from daemons.protocol.handshake import Progress
from daemons.protocol.ids import RoomKey
from daemons.protocol.status import Status, advance

ASK_S = 2.0  # so long unheard: prefill is told again where to write, each time after twice as long


@dataclass(slots=True)
class TransferQueue:
    """Rooms whose pages and row belong to a writer."""

    rooms: dict[RoomKey, Request] = field(default_factory=dict)

    def of(self, progress: Progress) -> Request | None:
        """Return the room that a progress is about, if its sender is the room's writer."""
        request = self.rooms.get(RoomKey(progress.room, progress.attempt))
        return request if request and request.peer == progress.sender else None

    def advance(self, request: Request, progress: Progress, now: float) -> None:
        """Note how far prefill is; it only moves forward.

        Prefill writes to us one room after the other, so bytes of one are progress of all.
        """
        request.status = advance(request.status, progress.status)
        request.sent_bytes = max(request.sent_bytes, progress.sent_bytes)
        request.since_s, request.asks = now, 0
        if progress.status is Status.TRANSFERRING or progress.status is Status.SUCCESS:
            for other in self.rooms.values():
                if other.peer == request.peer and other.status is Status.TRANSFERRING:
                    other.since_s = now

    def unheard(self, now: float) -> list[Request]:
        """Return rooms to ask prefill about, and count it as asked: a message may be lost."""
        found = []
        for request in self.rooms.values():
            waited_s = now - max(request.since_s, request.asked_s)
            if request.status is not Status.SUCCESS and waited_s >= ASK_S * 2**request.asks:
                request.asks, request.asked_s = request.asks + 1, now
                found.append(request)
        return found
