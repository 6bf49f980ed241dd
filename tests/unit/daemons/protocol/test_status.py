"""Status only moves forward."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.protocol.status import FINAL, Status, advance, agreed


def test_the_codes_are_those_of_the_wire() -> None:
    assert [int(status) for status in Status] == [0, 1, 2, 3, 4]
    assert Status.FAILED == 0
    assert Status.SUCCESS == 4


@pytest.mark.parametrize(("known", "seen"), [*itertools.product(sorted(FINAL), Status)])
def test_a_final_status_stays(known: Status, seen: Status) -> None:
    assert advance(known, seen) is known


@pytest.mark.parametrize(
    ("known", "seen", "after"),
    [
        (Status.BOOTSTRAPPING, Status.TRANSFERRING, Status.TRANSFERRING),
        (Status.TRANSFERRING, Status.WAITING_FOR_INPUT, Status.TRANSFERRING),
        (Status.TRANSFERRING, Status.FAILED, Status.FAILED),
        (Status.WAITING_FOR_INPUT, Status.SUCCESS, Status.SUCCESS),
    ],
)
def test_others_grow_or_fail(known: Status, seen: Status, after: Status) -> None:
    assert advance(known, seen) is after


def test_ranks_agree_by_the_least() -> None:
    assert agreed([Status.SUCCESS, Status.TRANSFERRING]) is Status.TRANSFERRING
    assert agreed([Status.SUCCESS, Status.FAILED]) is Status.FAILED
    assert agreed([Status.SUCCESS]) is Status.SUCCESS


def test_no_rank_is_no_agreement() -> None:
    with pytest.raises(ValueError, match="empty"):
        agreed([])


STATUSES = st.sampled_from(list(Status))


@given(st.lists(STATUSES, min_size=1))
def test_whatever_comes_a_status_only_moves_forward_or_ends(seen: list[Status]) -> None:
    known, ended = Status.BOOTSTRAPPING, False
    for status in seen:
        after = advance(known, status)
        assert after in (known, status)
        assert after == known if ended else (after >= known or after is Status.FAILED)
        assert advance(after, status) is after  # hearing it again changes nothing
        known, ended = after, after in FINAL


@given(st.lists(STATUSES, min_size=1))
def test_ranks_succeed_together_and_one_failure_fails_all(told: list[Status]) -> None:
    together = agreed(told)
    assert (together is Status.SUCCESS) == all(status is Status.SUCCESS for status in told)
    assert (together is Status.FAILED) == any(status is Status.FAILED for status in told)
    assert together == agreed(reversed(told))
