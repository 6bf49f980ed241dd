from daemons.lb.policies.turns import Turns

from .conftest import Make


def test_equal_ones_take_turns_and_a_newcomer_is_next(one: Make) -> None:
    turns = Turns()
    three = [one("a"), one("b"), one("c")]
    assert [turns.next(three).worker.name for _ in range(4)] == ["a", "b", "c", "a"]
    assert turns.next([*three, one("d")]).worker.name == "d"


def test_the_least_is_chosen_whoevers_turn_it_is(one: Make) -> None:
    turns = Turns()
    two = [one("a", rooms=2), one("b", rooms=1)]
    assert [turns.least(two, lambda c: c.rooms).worker.name for _ in range(3)] == ["b"] * 3


def test_of_equal_ones_the_clearly_faster_way_is_chosen(one: Make) -> None:
    turns = Turns()
    far = [one("a", rate=1e9), one("b", rate=9e9), one("c", rate=8e9)]
    names = [turns.least(far, lambda c: c.rooms).worker.name for _ in range(4)]
    assert names == ["b", "c", "b", "c"]


def test_names_that_are_long_gone_are_forgotten(one: Make) -> None:
    turns = Turns()
    for n in range(1000):
        turns.next([one(f"p{n}")])
    assert len(turns._last) <= 8
