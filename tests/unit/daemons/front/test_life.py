"""Whether an instance takes requests."""

from __future__ import annotations

import pytest

from daemons.front.life import Life
from daemons.protocol.causes import Cause
from daemons.protocol.topology import State
from daemons.runtime.http import Refusal


def refused(life: Life) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        life.admit()
    assert refusal.value.status == 503
    return refusal.value


async def test_only_a_ready_instance_takes_requests() -> None:
    life = Life("d0")
    life.enter(State.READY, "")
    life.admit()


@pytest.mark.parametrize("state", [State.STARTING, State.DRAINING])
async def test_any_other_says_why_not_and_when_to_come_again(state: State) -> None:
    life = Life("d0")
    life.enter(state, "the reason")
    answer = refused(life).response()
    assert answer.headers["Retry-After"]
    assert b"the reason" in (answer.body if isinstance(answer.body, bytes) else b"")


async def test_the_cause_tells_starting_draining_and_stopping_apart() -> None:
    life = Life("d0")
    causes = []
    for change in (lambda: None, lambda: life.enter(State.DRAINING, ""), lambda: life.stop("")):
        change()
        failure = refused(life).failure
        assert failure is not None
        causes.append(failure.cause)
    assert causes == [Cause.INSTANCE_STARTING, Cause.INSTANCE_DRAINING, Cause.INSTANCE_STOPPING]


async def test_each_change_wakes_the_registration() -> None:
    life = Life("d0")
    assert not life.changed.is_set()
    life.enter(State.READY, "")
    assert life.changed.is_set()


async def test_requests_on_their_way_are_taken_until_the_notice_is_over() -> None:
    life = Life("d0")
    life.enter(State.READY, "")
    life.drain("an operator drains it", notice_s=0.02)
    assert life.state is State.DRAINING  # what others are told
    life.admit()
    with pytest.raises(Refusal):
        life.welcome()
    await life.notice_over()
    assert "drains" in str(refused(life))


async def test_a_drain_that_is_taken_back_ends_the_notice() -> None:
    life = Life("d0")
    life.drain("an operator drains it", notice_s=0.02)
    life.enter(State.READY, "")
    await life.notice_over()
    life.admit()
    life.welcome()


async def test_only_one_that_stops_has_a_deadline_for_its_rooms() -> None:
    life = Life("d0")
    life.drain("an operator drains it", 0.0)
    assert life.drain_left_s() is None
    life.stop("it was told to stop", 0.0, 60.0)
    left_s = life.drain_left_s()
    assert left_s is not None
    assert 0 < left_s <= 60
    life.stop("again", 0.0, -1.0)
    assert life.drain_left_s() == 0.0
