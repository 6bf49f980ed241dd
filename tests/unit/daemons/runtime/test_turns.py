"""Priority and age decide who goes first."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from daemons.protocol.ids import RoomKey
from daemons.runtime.turns import put_in_turn, turn_of


@dataclass(slots=True)
class Room:
    turn: float


def queue(*turns: float) -> dict[RoomKey, Room]:
    rooms: dict[RoomKey, Room] = {}
    for number, turn in enumerate(turns, 1):
        put_in_turn(rooms, RoomKey(number, 1), Room(turn))
    return rooms


def test_a_point_of_priority_is_worth_so_much_waiting() -> None:
    assert turn_of(100.0, 2, 5.0) == turn_of(90.0, 0, 5.0)
    assert turn_of(100.0, 3, 5.0) < turn_of(90.0, 0, 5.0) < turn_of(100.0, 1, 5.0)


def test_equal_turns_go_in_the_order_in_which_they_came() -> None:
    assert [key.room for key in queue(2.0, 1.0, 2.0, 1.0)] == [2, 4, 1, 3]


@given(st.lists(st.floats(-10, 10), max_size=20))
def test_a_queue_is_always_in_order_of_its_turns(turns: list[float]) -> None:
    rooms = queue(*turns)
    assert [room.turn for room in rooms.values()] == sorted(turns)
    assert len(rooms) == len(turns)
