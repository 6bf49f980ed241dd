from collections import Counter
from random import Random

from daemons.lb.fleet import Wish
from daemons.lb.policies.power_of_two import PowerOfTwo

from .conftest import Make


def test_the_busiest_is_never_picked_and_the_idlest_most_often(one: Make) -> None:
    policy = PowerOfTwo(Random(1))
    three = [one("a", rooms=9), one("b", rooms=5), one("c")]
    drawn = Counter(policy.pick(three, Wish()).worker.name for _ in range(300))
    assert "a" not in drawn
    assert drawn["c"] > drawn["b"] > 0


def test_the_reason_shows_both(one: Make) -> None:
    choice = PowerOfTwo(Random(1)).pick([one("a", rooms=9), one("b", rooms=5)], Wish())
    assert choice.worker.name == "b"
    assert {"a 9", "b 5"} == set(choice.because.partition(": ")[2].split(", "))
