from collections import Counter
from random import Random

from daemons.lb.fleet import Wish
from daemons.lb.policies.at_random import AtRandom

from .conftest import Make


def test_each_is_drawn_about_as_often(one: Make) -> None:
    policy = AtRandom(Random(1))
    three = [one("a", rooms=9), one("b"), one("c")]
    drawn = Counter(policy.pick(three, Wish()).worker.name for _ in range(3000))
    assert all(900 < count < 1100 for count in drawn.values())
