"""The one closing line of a room, the same keys in every daemon."""

from __future__ import annotations

from daemons.protocol.causes import Failure
from daemons.protocol.ids import RoomKey, room_hex
from daemons.runtime.commands import Log


def closing_line(key: RoomKey, failure: Failure | None, **facts: object) -> Log:
    """Return the log command for a room that has ended; ``facts`` are numbers with units."""
    outcome: dict[str, object] = {
        "room": room_hex(key.room),
        "attempt": key.attempt,
        "outcome": "failed" if failure else "ok",
    }
    if failure:
        outcome |= {
            "cause": failure.cause.value,
            "stage": failure.stage,
            "blamed": failure.peer,
            "detail": failure.detail,
        }
    return Log("room.closed", tuple((outcome | facts).items()))
