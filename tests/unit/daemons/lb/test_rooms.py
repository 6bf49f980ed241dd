import random
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from daemons.lb.rooms import Rooms
from daemons.protocol.ids import ROOM_LIMIT


def scripted(*values: int) -> Rooms:
    left: Iterator[int] = iter(values)
    return Rooms(lambda bits: next(left))


def test_a_room_is_drawn_from_53_bits() -> None:
    asked: list[int] = []

    def bits(count: int) -> int:
        asked.append(count)
        return 2**count - 1

    assert Rooms(bits).draw(1) == [ROOM_LIMIT - 1]
    assert asked == [53]


def test_zero_is_never_drawn() -> None:
    assert scripted(0, 0, 7).draw(1) == [7]


def test_a_live_room_is_not_drawn_again_but_an_ended_one_may_be() -> None:
    rooms = scripted(7, 7, 8, 7)
    assert rooms.draw(2) == [7, 8]
    rooms.end([7])
    rooms.end([7])
    assert rooms.draw(1) == [7]
    assert rooms.live == {7, 8}


@given(st.integers(min_value=0), st.lists(st.integers(min_value=1, max_value=50), max_size=20))
def test_all_live_rooms_differ_and_none_is_left_when_all_have_ended(
    seed: int, batches: list[int]
) -> None:
    rooms = Rooms(random.Random(seed).getrandbits)
    drawn = [rooms.draw(count) for count in batches]
    flat = [room for batch in drawn for room in batch]
    assert len(flat) == len(set(flat)) == sum(batches)
    assert all(0 < room < ROOM_LIMIT for room in flat)
    for batch in drawn:
        rooms.end(batch)
    assert rooms.live == set()
