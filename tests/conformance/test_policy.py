"""What every balancing policy promises."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.lb.fleet import Life, Pair, Worker
from daemons.lb.policies import POLICIES
from daemons.protocol.topology import Role, State


def worker(name: str, role: Role) -> Worker:
    return Worker(name, role, 1, State.READY, "127.0.0.1", 80)


def all_pairs(prefills: int, decodes: int) -> list[Pair]:
    return [
        Pair(worker(f"p{p}", Role.PREFILL), worker(f"d{d}", Role.DECODE))
        for p in range(prefills)
        for d in range(decodes)
    ]


counts = st.integers(min_value=1, max_value=4)
every_policy = pytest.mark.parametrize("name", POLICIES)


@every_policy
@given(data=st.data())
def test_a_policy_picks_one_of_the_pairs_it_was_given(name: str, data: st.DataObject) -> None:
    policy = POLICIES[name]()
    for _ in range(data.draw(st.integers(min_value=1, max_value=10))):
        pairs = all_pairs(data.draw(counts), data.draw(counts))
        some = data.draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
        lives = [side.life for pair in pairs for side in (pair.prefill, pair.decode)]
        rooms = {life: data.draw(st.integers(0, 9)) for life in lives}
        pick = policy.pick(some, rooms)
        assert pick.pair in some
        assert pick.because


@every_policy
def test_the_same_calls_give_the_same_picks(name: str) -> None:
    one, other = POLICIES[name](), POLICIES[name]()
    pairs, rooms = all_pairs(3, 2), {("p0", 1): 2, ("d1", 1): 1}
    assert [one.pick(pairs, rooms) for _ in range(12)] == [
        other.pick(pairs, rooms) for _ in range(12)
    ]


@every_policy
def test_what_it_was_given_stays_as_it_was(name: str) -> None:
    pairs, rooms = all_pairs(2, 2), Counter[Life]({("p0", 1): 2})
    POLICIES[name]().pick(pairs, rooms)
    assert pairs == all_pairs(2, 2)
    assert rooms == {("p0", 1): 2}


@every_policy
@pytest.mark.parametrize(("prefills", "decodes"), [(1, 1), (2, 1), (1, 3), (2, 2), (2, 3), (3, 4)])
def test_with_load_that_follows_the_picks_nobody_starves(
    name: str, prefills: int, decodes: int
) -> None:
    policy, pairs, rooms = POLICIES[name](), all_pairs(prefills, decodes), Counter[Life]()
    for _ in range(12 * prefills * decodes):
        pair = policy.pick(pairs, rooms).pair
        rooms[pair.prefill.life] += 1
        rooms[pair.decode.life] += 1
    for role, workers in (("p", prefills), ("d", decodes)):
        share = 12 * prefills * decodes / workers
        loads = [count for (of, _), count in rooms.items() if of.startswith(role)]
        assert len(loads) == workers
        assert max(loads) - min(loads) <= max(2, share / 10)
