from daemons.lb.fleet import Wish
from daemons.lb.policies.round_robin import RoundRobin

from .conftest import Make


def test_workers_take_turns_whatever_their_load(one: Make) -> None:
    policy = RoundRobin()
    two = [one("a", rooms=9), one("b")]
    assert [policy.pick(two, Wish()).worker.name for _ in range(4)] == ["a", "b", "a", "b"]
