import os

from daemons.lb.fleet import Wish
from daemons.lb.policies.prefix_aware import BLOCK_BYTES, IMBALANCE_ROOMS, PrefixAware

from .conftest import Make

SYSTEM = os.urandom(10 * BLOCK_BYTES)


def test_prompts_with_a_common_beginning_go_where_it_was_seen(one: Make) -> None:
    policy = PrefixAware()
    three = [one("a"), one("b"), one("c")]
    first = policy.pick(three, Wish(prompt=SYSTEM + b"one"))
    assert first.because == "prefix not seen; least rooms: 0"
    for rest in (b"two", b"three" * 100):
        again = policy.pick(three, Wish(prompt=SYSTEM + rest))
        assert again.worker == first.worker
        assert again.because.startswith("has seen ")


def test_the_longest_beginning_wins(one: Make) -> None:
    policy = PrefixAware()
    a, b = one("a"), one("b")
    policy.pick([a], Wish(prompt=SYSTEM[: 5 * BLOCK_BYTES]))
    policy.pick([b], Wish(prompt=SYSTEM))
    choice = policy.pick([a, b], Wish(prompt=SYSTEM + b"x"))
    assert (choice.worker.name, choice.because) == ("b", "has seen 100% of the prompt")


def test_a_worker_that_is_far_busier_loses_its_prefixes_to_the_idlest(one: Make) -> None:
    policy = PrefixAware()
    policy.pick([one("a")], Wish(prompt=SYSTEM))
    little = [one("a", rooms=IMBALANCE_ROOMS), one("b")]
    assert policy.pick(little, Wish(prompt=SYSTEM)).worker.name == "a"
    much = [one("a", rooms=IMBALANCE_ROOMS + 1), one("b")]
    choice = policy.pick(much, Wish(prompt=SYSTEM))
    assert choice.worker.name == "b"
    assert choice.because.startswith(f"a has the prefix but {IMBALANCE_ROOMS + 1} rooms")


def test_a_little_in_common_is_not_worth_an_uneven_load(one: Make) -> None:
    policy = PrefixAware()
    policy.pick([one("a")], Wish(prompt=SYSTEM[:BLOCK_BYTES]))
    long = Wish(prompt=SYSTEM[:BLOCK_BYTES] + os.urandom(20 * BLOCK_BYTES))
    assert policy.pick([one("a", rooms=1), one("b")], long).worker.name == "b"


def test_a_new_life_has_seen_nothing(one: Make) -> None:
    policy = PrefixAware()
    policy.pick([one("a")], Wish(prompt=SYSTEM))
    choice = policy.pick([one("a", epoch=2), one("b")], Wish(prompt=SYSTEM))
    assert choice.because.startswith("prefix not seen")


def test_what_is_remembered_is_bounded_and_the_oldest_is_forgotten_first(one: Make) -> None:
    policy = PrefixAware(blocks_limit=15)
    policy.pick([one("a")], Wish(prompt=SYSTEM))
    policy.pick([one("b")], Wish(prompt=os.urandom(10 * BLOCK_BYTES)))
    assert len(policy._seen) == 15
    choice = policy.pick([one("a"), one("b", rooms=0)], Wish(prompt=SYSTEM))
    assert choice.because == "has seen 50% of the prompt", "the end is forgotten before the start"


def test_a_prompt_of_less_than_a_block_goes_by_load(one: Make) -> None:
    choice = PrefixAware().pick([one("a", rooms=1), one("b")], Wish(prompt=b"short"))
    assert choice.worker.name == "b"
