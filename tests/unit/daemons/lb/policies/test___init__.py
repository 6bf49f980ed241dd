from random import Random

from daemons.lb.policies import POLICIES


def test_the_table_names_each_policy_once() -> None:
    assert list(POLICIES) == sorted(POLICIES)
    assert len({type(make(Random(1))) for make in POLICIES.values()}) == len(POLICIES) == 8
