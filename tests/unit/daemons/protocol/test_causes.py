"""Why something ended."""

from __future__ import annotations

import pytest

from daemons.protocol.causes import HTTP_STATUS, RETRY_IS_SENSIBLE, Cause, Failure


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_status_that_is_an_error(cause: Cause) -> None:
    assert 400 <= HTTP_STATUS[cause] <= 599
    assert Failure(cause, "transfer").http_status == HTTP_STATUS[cause]


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_says_where_and_what(cause: Cause) -> None:
    where, what = cause.value.split(".")
    assert where
    assert what


@pytest.mark.parametrize("cause", sorted(RETRY_IS_SENSIBLE))
def test_what_may_be_tried_again_is_the_servers_fault_or_came_too_fast(cause: Cause) -> None:
    assert HTTP_STATUS[cause] >= 500 or HTTP_STATUS[cause] == 429
    assert Failure(cause, "prealloc").retry_is_sensible


@pytest.mark.parametrize("cause", [Cause.REQUEST_INVALID, Cause.PAIR_MISMATCH, Cause.INTERNAL])
def test_what_fails_again_is_not_tried_again(cause: Cause) -> None:
    assert not Failure(cause, "prealloc").retry_is_sensible


def test_a_failure_reads_as_cause_stage_peer_and_detail() -> None:
    failure = Failure(Cause.PEER_DIED, "transfer", "p0", "its port refuses connections")
    assert str(failure) == "peer.died in transfer (p0): its port refuses connections"


def test_what_is_absent_is_not_printed() -> None:
    assert str(Failure(Cause.QUEUE_FULL, "prealloc")) == "queue.full in prealloc"
