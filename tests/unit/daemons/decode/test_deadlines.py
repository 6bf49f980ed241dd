"""How long a room may stay in each stage, and what it fails with then."""

from __future__ import annotations

import pytest

from daemons.decode.deadlines import MARGIN_S, Deadlines
from daemons.decode.prefills import Prefills
from daemons.decode.request import Request
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import RouteFailed
from daemons.protocol.status import Status
from daemons.runtime.liveness import Liveness
from daemons.runtime.peers import Peers
from tests.support.cores import TIMERS, D, P, answer, buffers, key, route, submit

ALMOST_S = 0.001


def request(**changes: object) -> Request:
    """Room 1, which has been in its stage since second 1."""
    made = Request(submit(timeout_s=50.0), key(), 0.0, 1.0, 2, P)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def prefills(*, ready: bool) -> Prefills:
    """What we know of p0: it has taken our buffers, or nothing."""
    known = Prefills(buffers(D), Peers(Liveness(TIMERS.heartbeat_s, TIMERS.peer_timeout_s)))
    if ready:
        known.need("p0", 0.0)
        known.found(route(), 0.0)
        known.answered(answer(), 0.0)
    return known


def after(
    wait_s: float, stage: str, room: Request, known: Prefills | None = None
) -> Failure | None:
    """Return what a room fails with when it has waited so long, and not a moment before."""
    deadlines = Deadlines("d0", known or prefills(ready=True))
    assert deadlines.overdue(room, stage, TIMERS, room.since_s + wait_s - ALMOST_S) is None
    return deadlines.overdue(room, stage, TIMERS, room.since_s + wait_s)


def test_a_prefill_that_is_not_ready_in_time_is_to_blame() -> None:
    failure = after(TIMERS.handshake_s, "prealloc", request(), prefills(ready=False))
    assert failure == Failure(Cause.HANDSHAKE_TIMEOUT, "prealloc", "p0", "not ready within 10 s")


def test_what_the_last_look_up_said_is_the_better_reason() -> None:
    known = prefills(ready=False)
    why = Failure(Cause.BOOTSTRAP_UNKNOWN, "prealloc", "p0")
    known.need("p0", 0.0)
    known.not_found(RouteFailed("p0", why), 0.0)
    assert after(TIMERS.handshake_s, "prealloc", request(), known) == why


@pytest.mark.parametrize(("local", "ready"), [(False, True), (True, False)])
def test_where_only_memory_is_wanting_the_wait_is_our_own(*, local: bool, ready: bool) -> None:
    failure = after(TIMERS.queue_s, "prealloc", request(local=local), prefills(ready=ready))
    detail = "2 pages were not free within 20 s"
    assert failure == Failure(Cause.QUEUE_TIMEOUT, "prealloc", "d0", detail)


@pytest.mark.parametrize(
    ("status", "limit_s", "cause"),
    [
        (Status.BOOTSTRAPPING, TIMERS.destination_s, Cause.PEER_NEVER_CAME),
        (Status.WAITING_FOR_INPUT, TIMERS.queue_s, Cause.QUEUE_TIMEOUT),
        (Status.TRANSFERRING, TIMERS.progress_s, Cause.PROGRESS_TIMEOUT),
        (Status.SUCCESS, TIMERS.progress_s, Cause.PROGRESS_TIMEOUT),
    ],
)
def test_prefill_may_speak_first_and_then_we_do(
    status: Status, limit_s: float, cause: Cause
) -> None:
    failure = after(limit_s + MARGIN_S, "transfer", request(status=status))
    assert failure == Failure(cause, "transfer", "p0", f"nothing for {limit_s + MARGIN_S} s")


def test_a_prompt_that_is_computed_here_must_get_on() -> None:
    failure = after(TIMERS.progress_s, "forward", request(local=True))
    assert failure == Failure(Cause.PROGRESS_TIMEOUT, "forward", "d0", "no chunk for 12 s")


@pytest.mark.parametrize(
    ("stage", "peer"),
    [
        ("prealloc", "p0"), ("transfer", "p0"), ("forward", ""), ("prebuilt", ""),
        ("running", ""), ("retracted", ""),
    ],
)  # fmt: skip
def test_the_clients_patience_ends_a_room_in_any_stage(stage: str, peer: str) -> None:
    failure = after(10.0, stage, request(since_s=40.0))
    assert failure == Failure(Cause.TOTAL_TIMEOUT, stage, peer, "50.0 s in total")
