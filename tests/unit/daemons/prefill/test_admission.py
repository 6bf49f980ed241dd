"""Admission to a prefill, through the whole core."""

from __future__ import annotations

import pytest

from daemons.engine.step import Prepared, Run
from daemons.prefill.commands import WriteKV
from daemons.prefill.events import WriteDone, WriteSkipped
from daemons.protocol.causes import Cause
from daemons.protocol.handshake import AbortAnswer, Fence, Progress
from daemons.protocol.status import Status
from daemons.runtime.events import Draining, Tick
from tests.support.cores import (
    D_OTHER,
    GUIDED,
    abort,
    buffers,
    came,
    causes,
    destination,
    done,
    is_idle,
    key,
    of,
    said,
    submitted,
)
from tests.support.prefill_scenes import in_flight, in_forward, paired


def test_the_two_halves_of_a_room_come_in_any_order() -> None:
    core = paired()
    core.handle(came(destination()), 0.0)
    assert core.busy
    assert of(core.handle(submitted(), 1.0), Run)


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (submitted(tokens=33), Cause.REQUEST_TOO_LONG),
        (submitted(tokens=0), Cause.REQUEST_INVALID),
    ],
)
def test_a_request_that_cannot_be_is_refused_on_both_sides(event: object, cause: Cause) -> None:
    core = paired()
    assert causes(core.handle(event, 0.0)) == [cause]  # type: ignore[arg-type]
    (refusal,) = said(core.handle(came(destination()), 1.0), Progress)
    assert refusal.status is Status.FAILED
    assert refusal.failure is not None
    assert refusal.failure.cause is cause
    assert is_idle(core)


def test_a_refused_request_takes_its_waiting_destination_with_it() -> None:
    core = paired()
    core.handle(came(destination(tokens=33)), 0.0)
    commands = core.handle(submitted(tokens=33), 1.0)
    assert [p.status for p in said(commands, Progress)] == [Status.FAILED]
    assert is_idle(core)


def test_too_many_rooms_are_refused() -> None:
    core = paired(max_rooms=1)
    core.handle(submitted(1), 0.0)
    assert causes(core.handle(submitted(2), 0.0)) == [Cause.QUEUE_FULL]


def test_a_draining_core_finishes_what_it_has_and_takes_nothing_new() -> None:
    core = in_forward()
    core.handle(Draining(on=True), 1.0)
    assert causes(core.handle(submitted(2), 1.0)) == [Cause.INSTANCE_DRAINING]
    assert of(core.handle(done(1, token=0), 2.0), Run)
    core.handle(Draining(on=False), 3.0)
    assert causes(core.handle(submitted(3), 3.0)) == []


def test_the_same_room_again_changes_nothing_while_it_is_here() -> None:
    core = in_forward()
    assert core.handle(submitted(), 1.0) == []
    assert core.counters["duplicate_rooms"] == 1


def test_the_same_room_again_is_a_duplicate_once_it_is_over() -> None:
    core = in_flight()
    core.handle(WriteDone(key(), 1), 3.0)
    core.handle(WriteDone(key(), 1), 3.0)
    assert causes(core.handle(submitted(), 4.0)) == [Cause.REQUEST_DUPLICATE]
    assert is_idle(core)


def test_a_bad_destination_fails_the_room_on_both_sides() -> None:
    core = paired()
    core.handle(submitted(), 0.0)
    commands = core.handle(came(destination(tokens=6, pages=(10,))), 0.0)
    assert causes(commands) == [Cause.HANDSHAKE_REFUSED]
    (refusal,) = said(commands, Progress)
    assert refusal.failure is not None
    assert refusal.failure.detail == "1 pages offered, 2 needed"
    assert is_idle(core)


def test_a_destination_that_comes_twice_is_let_be() -> None:
    core = in_forward()
    assert core.handle(came(destination()), 1.0) == []


def test_another_decode_is_refused_at_once_and_the_first_goes_on() -> None:
    core = in_forward()
    core.handle(came(buffers(D_OTHER)), 0.0)
    commands = core.handle(came(destination(sender=D_OTHER)), 1.0)
    (refusal,) = said(commands, Progress)
    assert (refusal.status, refusal.to_epoch) == (Status.FAILED, D_OTHER.epoch)
    assert refusal.failure is not None
    assert refusal.failure.cause is Cause.REQUEST_DUPLICATE
    assert of(core.handle(done(1, token=0), 2.0), WriteKV)


def test_a_destination_that_comes_again_hears_of_a_room_that_waits() -> None:
    core = paired(pages=2)
    for room in (1, 2):
        core.handle(submitted(room), 0.0)
        core.handle(came(destination(room)), 0.0)
    commands = core.handle(came(destination(2)), 1.0)
    assert [p.status for p in said(commands, Progress)] == [Status.WAITING_FOR_INPUT]


def test_rooms_wait_by_priority_and_age() -> None:
    core = paired(pages=2, ageing_s=5.0)
    rooms = ((1, 0, 0.0), (2, 0, 1.0), (3, 0, 2.0), (4, 1, 5.5))
    for room, priority, at_s in rooms:
        core.handle(submitted(room, priority=priority), at_s)
        core.handle(came(destination(room)), at_s)
    assert list(core.stages.waiting.rooms) == [key(4), key(2), key(3)]  # room 1 has the pages


def test_a_destination_of_a_room_that_is_over_gets_its_end() -> None:
    core = in_flight()
    core.handle(WriteDone(key(), 1), 3.0)
    core.handle(WriteDone(key(), 1), 3.0)
    assert [p.status for p in said(core.handle(came(destination()), 4.0), Progress)] == [
        Status.SUCCESS
    ]


def test_another_decode_is_not_told_that_a_room_which_is_done_succeeded() -> None:
    core = in_flight()
    core.handle(came(buffers(D_OTHER)), 2.0)
    core.handle(WriteDone(key(), 1), 3.0)
    core.handle(WriteDone(key(), 1), 3.0)
    (refusal,) = said(core.handle(came(destination(sender=D_OTHER)), 4.0), Progress)
    assert refusal.status is Status.FAILED


def test_a_destination_that_nobody_claims_is_answered_and_remembered() -> None:
    core = paired()
    core.handle(came(destination()), 0.0)
    assert said(core.handle(Tick(), 14.9), Progress) == []
    (refusal,) = said(core.handle(Tick(), 15.0), Progress)
    assert refusal.failure is not None
    assert refusal.failure.cause is Cause.PEER_NEVER_CAME
    assert causes(core.handle(submitted(), 16.0)) == [Cause.PEER_NEVER_CAME]
    assert is_idle(core)


def test_unclaimed_destinations_are_bounded_and_the_rest_is_refused() -> None:
    core = paired(max_orphans=1)
    core.handle(came(destination(1)), 0.0)
    (refusal,) = said(core.handle(came(destination(2)), 0.0), Progress)
    assert refusal.failure is not None
    assert refusal.failure.cause is Cause.QUEUE_FULL
    assert said(core.handle(came(destination(1)), 0.0), Progress) == []
    assert of(core.handle(submitted(1), 1.0), Run)


def test_without_a_place_to_remember_it_nothing_is_promised() -> None:
    core = paired()
    core.tombs.limit = 1
    assert said(core.handle(came(abort(7)), 0.0), AbortAnswer)
    assert said(core.handle(came(abort(8)), 0.0), AbortAnswer) == []
    assert said(core.handle(came(abort(7)), 0.0), AbortAnswer)
    core.handle(Tick(), 100.0)
    assert said(core.handle(came(abort(8)), 100.0), AbortAnswer)


def test_many_rooms_that_nobody_asked_for_use_bounded_memory() -> None:
    core = paired(max_orphans=10)
    core.tombs.limit = 100
    for room in range(1, 2000):
        core.handle(came(destination(room)), 0.0)
        core.handle(came(abort(5000 + room)), 0.0)
    assert len(core.stages.bootstrap.orphans) == 10
    assert len(core.tombs) == 100


def test_an_abort_is_answered_when_nothing_writes_any_more() -> None:
    core = in_flight()
    commands = core.handle(came(abort()), 3.0)
    assert causes(commands) == [Cause.CLIENT_CANCELLED]
    assert said(commands, AbortAnswer) == []
    assert said(core.handle(came(abort()), 3.5), AbortAnswer) == []
    core.handle(WriteDone(key(), 9), 4.0)
    (last,) = said(core.handle(WriteSkipped(key()), 4.0), Progress)
    assert (last.status, last.fence) == (Status.FAILED, Fence.CLEAN)
    (again,) = said(core.handle(came(abort()), 5.0), AbortAnswer)
    assert again.fence is Fence.CLEAN


def test_an_abort_of_an_unknown_room_is_answered_and_holds_for_both_halves() -> None:
    core = paired()
    (answered,) = said(core.handle(came(abort()), 0.0), AbortAnswer)
    assert answered.fence is Fence.CLEAN
    assert causes(core.handle(submitted(), 1.0)) == [Cause.CLIENT_CANCELLED]
    assert [p.status for p in said(core.handle(came(destination()), 1.0), Progress)] == [
        Status.FAILED
    ]
    assert is_idle(core)


def test_an_abort_takes_an_unclaimed_destination_with_it() -> None:
    core = paired()
    core.handle(came(destination()), 0.0)
    assert said(core.handle(came(abort()), 1.0), AbortAnswer)
    assert is_idle(core)


def test_an_abort_before_the_destination_ends_the_request() -> None:
    core = paired()
    core.handle(submitted(), 0.0)
    commands = core.handle(came(abort()), 1.0)
    assert causes(commands) == [Cause.CLIENT_CANCELLED]
    assert said(commands, AbortAnswer)
    assert is_idle(core)


def test_a_decode_cannot_abort_the_room_of_another() -> None:
    core = in_forward()
    core.handle(came(buffers(D_OTHER)), 0.0)
    assert core.handle(came(abort(sender=D_OTHER)), 1.0) == []
    assert core.counters["messages_from_strangers"] == 1
    assert core.busy


def test_credits_tell_what_is_free_and_who_waits() -> None:
    core = paired(pages=2)
    assert core.credits == {"tokens": 8, "rows": 4, "places": 64, "queue": 0}
    for room in (1, 2):
        core.handle(submitted(room), 0.0)
        core.handle(came(destination(room)), 0.0)
    assert core.credits == {"tokens": 0, "rows": 3, "places": 63, "queue": 1}


def test_a_grammar_that_is_there_before_the_destination_holds_nothing_back() -> None:
    core = paired()
    core.handle(submitted(1, sampling=GUIDED), 0.0)
    core.handle(Prepared(key(1)), 0.0)
    core.handle(Prepared(key(9)), 0.0)  # of a room that is gone
    assert len(of(core.handle(came(destination(1)), 0.0), Run)) == 1
