"""What happened lately in the whole cluster, by time: instances that came and went, failed rooms.

The phone book tells the first, every daemon's list of rooms the second. A failed room is told
once, with its first cause, by the moment it came (its end is in its trace).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from daemons.protocol.ids import room_hex, room_short
from daemons.protocol.topology import FleetEvent
from pdctl.merge import Summary

SPOKEN = {
    "new": "has joined",
    "replaced": "has joined again, in a new life",
    "rank": "has one more rank",
    "deregistered": "has left",
    "lost": "is lost: its lease ran out",
    "forgotten": "is forgotten",
    "refused": "was refused",
}
WARNINGS = frozenset({"lost", "refused", "replaced", "failed"})


@dataclass(frozen=True, slots=True)
class Event:
    """One line of ``pdctl events``."""

    at_s: float  # Unix time, by our clock
    kind: str  # of an instance: see FleetEvent; of a room: failed
    subject: str  # an instance, or a room in hexadecimal
    words: str
    mark: str  # equal in two looks only for the same event, whatever the clocks say
    cause: str = ""  # of a failed room

    @property
    def short(self) -> str:
        """The subject as it is shown."""
        return room_short(int(self.subject, 16)) if self.cause else self.subject


def of_fleet(told: Iterable[FleetEvent], behind_s: float) -> list[Event]:
    """Return the phone book's events; ``behind_s`` is how far its clock is behind ours."""
    return [
        Event(
            event.at_s + behind_s,
            event.event,
            event.instance,
            SPOKEN.get(event.event, f"is {event.event}")
            + (f" ({event.detail})" if event.detail else ""),
            f"{event.event} {event.instance} {event.at_s}",
        )
        for event in told
    ]


def of_rooms(rooms: Iterable[Summary], now_s: float) -> list[Event]:
    """Return one event for each failed room."""
    return [
        Event(
            now_s - one.age_s,
            "failed",
            room_hex(one.room),
            f"failed: {one.failure}",
            f"{one.room} {one.attempt}",
            one.failure.cause.value,
        )
        for one in rooms
        if one.failure is not None
    ]


def merged(events: Iterable[Event], limit: int) -> list[Event]:
    """Return the last ``limit`` events, the oldest first."""
    ordered = sorted(events, key=lambda event: event.at_s)
    return ordered[max(0, len(ordered) - limit) :]
