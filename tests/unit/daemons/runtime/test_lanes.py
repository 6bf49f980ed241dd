from __future__ import annotations

import threading
from queue import SimpleQueue

from daemons.runtime.lanes import Job, Lane


def raise_it() -> None:
    raise OSError("the disk is gone")


def test_a_lane_does_its_jobs_in_order_on_one_thread_of_its_own() -> None:
    events: SimpleQueue[object] = SimpleQueue()
    lane = Lane("test", events.put)
    for number in range(3):
        lane.submit(Job(lambda n=number: (n, threading.current_thread().name), str))
    assert [events.get(timeout=5) for _ in range(3)] == [(n, "test") for n in range(3)]
    assert lane.close(5)


def test_a_job_that_raises_reports_the_event_of_its_owner_and_the_lane_goes_on() -> None:
    events: SimpleQueue[object] = SimpleQueue()
    lane = Lane("test", events.put)
    lane.submit(Job(raise_it, lambda why: f"failed: {why}"))
    lane.submit(Job(lambda: "well", str))
    assert events.get(timeout=5) == "failed: OSError: the disk is gone"
    assert events.get(timeout=5) == "well"
    assert lane.close(5)


def test_a_job_without_an_event_reports_nothing() -> None:
    events: SimpleQueue[object] = SimpleQueue()
    lane = Lane("test", events.put)
    lane.submit(Job(lambda: None, str))
    assert lane.close(5)
    assert events.empty()


def test_close_says_when_a_job_is_still_under_way() -> None:
    gate = threading.Event()
    lane = Lane("test", lambda _: None)
    lane.submit(Job(gate.wait, str))
    assert not lane.close(0.01)
    gate.set()
    assert lane.close(5)
