"""What every balancing policy promises."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.lb.fleet import Candidate, Wish, Worker
from daemons.lb.policies import POLICIES
from daemons.protocol.topology import Role, State

every_policy = pytest.mark.parametrize("name", POLICIES)


def worker(name: str, epoch: int = 1) -> Worker:
    return Worker(name, Role.PREFILL, epoch, State.READY, "127.0.0.1", 80)


counts = st.integers(0, 300)
candidates = st.lists(st.sampled_from("abcd"), min_size=1, unique=True).flatmap(
    lambda names: st.tuples(
        *(
            st.builds(
                Candidate,
                worker=st.builds(worker, st.just(name), st.integers(1, 2)),
                rooms=counts,
                tokens=st.integers(0, 10**6),
                free_tokens=st.none() | st.integers(-(10**4), 10**6),
                rate=st.sampled_from([0.0, 1e9, 2e9]),
            )
            for name in sorted(names)
        )
    )
)
wishes = st.builds(
    Wish,
    rooms=st.integers(0, 64),
    tokens=st.integers(0, 10**5),
    prompt_tokens=st.integers(0, 10**5),
    prompt=st.sampled_from([b"", b"short", b"x" * 1000, b"x" * 900 + b"y" * 900]),
    session=st.sampled_from(["", "s1", "s2", "\ud800"]),
)
calls = st.lists(st.tuples(candidates, wishes), min_size=1, max_size=4)


@every_policy
@settings(max_examples=25, deadline=None)
@given(calls=calls)
def test_a_policy_picks_one_of_those_it_was_given_and_says_why(
    name: str, calls: list[tuple[tuple[Candidate, ...], Wish]]
) -> None:
    policy = POLICIES[name](Random(1))
    for some, wish in calls:
        choice = policy.pick(some, wish)
        assert choice.worker in [one.worker for one in some]
        assert choice.because


@every_policy
@settings(max_examples=25, deadline=None)
@given(calls=calls)
def test_the_same_calls_give_the_same_choices(
    name: str, calls: list[tuple[tuple[Candidate, ...], Wish]]
) -> None:
    one, other = POLICIES[name](Random(1)), POLICIES[name](Random(1))
    assert [one.pick(*call) for call in calls] == [other.pick(*call) for call in calls]


@every_policy
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_with_load_that_follows_the_choices_nobody_starves(name: str, workers: int) -> None:
    policy, rooms = POLICIES[name](Random(1)), Counter[str]()
    names = [f"p{n}" for n in range(workers)]
    for n in range(60 * workers):
        some = [Candidate(worker(one), rooms[one], 100 * rooms[one]) for one in names]
        wish = Wish(1, 100, session=f"session {n}", prompt=b"%d" % n * 200)
        rooms[policy.pick(some, wish).worker.name] += 1
    assert len(rooms) == workers
    assert max(rooms.values()) - min(rooms.values()) <= 60


@every_policy
def test_who_comes_is_chosen_and_who_has_left_is_not(name: str) -> None:
    policy = POLICIES[name](Random(1))
    old, new = [Candidate(worker("p0"), rooms=40)], [Candidate(worker("p1"))]
    for _ in range(5):
        policy.pick(old, Wish(1, session="s", prompt=b"a" * 500))
    chosen = {policy.pick(old + new, Wish(1, session=f"{n}")).worker.name for n in range(50)}
    assert "p1" in chosen
    assert policy.pick(new, Wish(1, session="s", prompt=b"a" * 500)).worker.name == "p1"
