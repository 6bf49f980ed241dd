"""The two halves of a room come in any order."""

from __future__ import annotations

from daemons.prefill.bootstrap_queue import BootstrapQueue
from tests.support.cores import destination, key


def test_a_kept_destination_is_claimed_once() -> None:
    queue = BootstrapQueue(max_orphans=2)
    assert queue.keep_orphan(key(1), destination(1), 0.0)
    assert queue.claim(key(1)) == destination(1)
    assert queue.claim(key(1)) is None


def test_destinations_are_bounded_but_the_same_one_may_come_again() -> None:
    queue = BootstrapQueue(max_orphans=1)
    assert queue.keep_orphan(key(1), destination(1), 0.0)
    assert not queue.keep_orphan(key(2), destination(2), 0.0)
    assert queue.keep_orphan(key(1), destination(1), 5.0)
    assert list(queue.orphans) == [key(1)]


def test_the_time_of_a_destination_counts_from_its_first_coming() -> None:
    queue = BootstrapQueue(max_orphans=3)
    queue.keep_orphan(key(1), destination(1), 0.0)
    queue.keep_orphan(key(2), destination(2), 4.0)
    queue.keep_orphan(key(1), destination(1), 5.0)
    assert queue.expired_orphans(9.9, 10.0) == []
    assert queue.expired_orphans(10.0, 10.0) == [destination(1)]
    assert list(queue.orphans) == [key(2)]
