"""How long a room may stay in each stage, and what it fails with then."""

from __future__ import annotations

import pytest

from daemons.prefill.deadlines import overdue
from daemons.prefill.request import Request
from daemons.protocol.causes import Cause, Failure
from tests.support.cores import TIMERS, destination, key, submit


def request(stage: str) -> Request:
    """Room 1, which has been in its stage since second 1; decode is known after bootstrap."""
    where = None if stage == "bootstrap" else destination()
    return Request(submit(timeout_s=50.0), key(), 0.0, 1.0, where)


@pytest.mark.parametrize(
    ("stage", "limit_s", "cause", "peer"),
    [
        ("bootstrap", 15, Cause.PEER_NEVER_CAME, ""),
        ("waiting", 20, Cause.QUEUE_TIMEOUT, "d0"),
        ("forward", 12, Cause.PROGRESS_TIMEOUT, "p0"),  # it is our own engine that stands still
        ("inflight", 12, Cause.PROGRESS_TIMEOUT, "d0"),
    ],
)
def test_each_stage_has_its_own_deadline(stage: str, limit_s: int, cause: Cause, peer: str) -> None:
    room = request(stage)
    assert overdue(room, stage, TIMERS, "p0", limit_s + 0.9) is None
    failure = overdue(room, stage, TIMERS, "p0", limit_s + 1.0)
    assert failure == Failure(cause, stage, peer, f"nothing for {limit_s} s")


@pytest.mark.parametrize("stage", ["bootstrap", "waiting", "forward", "inflight"])
def test_the_clients_patience_ends_a_room_in_any_stage(stage: str) -> None:
    room = request(stage)
    room.since_s = 45.0
    assert overdue(room, stage, TIMERS, "p0", 49.9) is None
    failure = overdue(room, stage, TIMERS, "p0", 50.0)
    assert failure == Failure(Cause.TOTAL_TIMEOUT, stage, room.peer_name, "50.0 s in total")
