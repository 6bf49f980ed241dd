from daemons.lb.policies import POLICIES


def test_the_table_names_each_policy_once() -> None:
    assert sorted(POLICIES) == ["least_rooms", "round_robin"]
    assert len({type(make()) for make in POLICIES.values()}) == len(POLICIES)
