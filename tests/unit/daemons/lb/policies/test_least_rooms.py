from daemons.lb.fleet import Wish
from daemons.lb.policies.least_rooms import LeastRooms

from .conftest import Make


def test_the_fewest_rooms_are_picked_and_told(one: Make) -> None:
    choice = LeastRooms().pick([one("a", rooms=3), one("b", rooms=1)], Wish())
    assert (choice.worker.name, choice.because) == ("b", "least rooms: 1")


def test_equal_ones_take_turns(one: Make) -> None:
    policy = LeastRooms()
    two = [one("a"), one("b")]
    assert [policy.pick(two, Wish()).worker.name for _ in range(3)] == ["a", "b", "a"]
