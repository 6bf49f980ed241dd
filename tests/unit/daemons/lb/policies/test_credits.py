from daemons.lb.fleet import Wish
from daemons.lb.policies.credits import ByCredits

from .conftest import Make


def test_fewest_rooms_go_first_then_most_free_tokens(one: Make) -> None:
    policy = ByCredits()
    three = [one("a", rooms=1, free_tokens=90000), one("b", free_tokens=5000)]
    three.append(one("c", free_tokens=50000))
    choice = policy.pick(three, Wish(tokens=100))
    assert (choice.worker.name, choice.because) == ("c", "fewest rooms: 0, 50000 tokens free")


def test_who_lacks_memory_is_picked_only_when_all_do(one: Make) -> None:
    policy = ByCredits()
    two = [one("a", free_tokens=10), one("b", rooms=7, free_tokens=5000)]
    assert policy.pick(two, Wish(tokens=100)).worker.name == "b"
    assert policy.pick(two, Wish(tokens=9000)).worker.name == "a"


def test_about_equal_memory_is_equal_and_unknown_memory_is_none(one: Make) -> None:
    policy = ByCredits()
    two = [one("a", free_tokens=5000), one("b", free_tokens=4900)]
    assert [policy.pick(two, Wish()).worker.name for _ in range(2)] == ["a", "b"]
    assert policy.pick([one("c"), one("d", free_tokens=5000)], Wish()).worker.name == "d"
    assert policy.pick([one("c")], Wish()).because == "fewest rooms: 0"
