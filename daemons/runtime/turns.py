"""Queues in order of priority and age: who comes first may be overtaken, but not for ever.

A room's turn is when it came, earlier by ``ageing_s`` for each point of its priority. So one that
waits gains on all that come later, and the order of two rooms never changes.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from daemons.protocol.ids import RoomKey


class HasTurn(Protocol):
    """A room that can wait."""

    turn: float


Waiting = TypeVar("Waiting", bound=HasTurn)


def turn_of(came_s: float, priority: int, ageing_s: float) -> float:
    """Return when it is a room's turn; of two rooms the lesser goes first."""
    return came_s - priority * ageing_s


def put_in_turn(rooms: dict[RoomKey, Waiting], key: RoomKey, room: Waiting) -> None:
    """Put a room into a queue that is in order, behind those whose turn is the same."""
    later = [other for other, waiting in rooms.items() if waiting.turn > room.turn]
    rooms[key] = room
    for other in later:
        rooms[other] = rooms.pop(other)
