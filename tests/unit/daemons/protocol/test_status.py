"""Status only moves forward."""

from __future__ import annotations

import itertools

import pytest

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
