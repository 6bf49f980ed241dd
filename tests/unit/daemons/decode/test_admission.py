"""Admission to a decode, through the whole core."""

from __future__ import annotations

import pytest

from daemons.engine.step import Prepared, Run
from daemons.protocol.causes import Cause
from daemons.protocol.handshake import Abort, Destination
from daemons.protocol.status import Status
from daemons.runtime.events import Cancelled, Draining, Tick
from tests.support.cores import (
    CANCELLED,
    GUIDED,
    answer,
    came,
    causes,
    decode_core,
    done,
    is_idle,
    key,
    of,
    progress,
    route,
    said,
    submitted,
    told,
)
from tests.support.decode_scenes import (
    SUCCESS,
    heard,
    in_transfer,
    paired,
    retracted,
    row_read,
    running,
)


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (submitted(tokens=31, most=3), Cause.REQUEST_TOO_LONG),
        (submitted(tokens=0), Cause.REQUEST_INVALID),
    ],
)
def test_a_request_that_cannot_be_is_refused_and_prefill_is_told(
    event: object, cause: Cause
) -> None:
    core = paired()
    commands = core.handle(event, 0.0)  # type: ignore[arg-type]
    assert causes(commands) == [cause]
    assert [a.failure.cause for a in said(commands, Abort)] == [cause]
    assert is_idle(core)


def test_a_request_that_just_fits_is_taken() -> None:
    core = paired()
    assert said(core.handle(submitted(tokens=30, most=3), 0.0), Destination)


def test_too_many_rooms_are_refused() -> None:
    core = in_transfer(max_rooms=1)
    assert causes(core.handle(submitted(2), 0.0)) == [Cause.QUEUE_FULL]


def test_a_draining_core_finishes_what_it_has_and_takes_nothing_new() -> None:
    core = running()
    core.handle(Draining(on=True), 1.0)
    assert causes(core.handle(submitted(2), 1.0)) == [Cause.INSTANCE_DRAINING]
    assert told(core.handle(done(1), 2.0))


def test_the_same_room_again_changes_nothing_while_it_is_here() -> None:
    core = in_transfer()
    assert core.handle(submitted(), 1.0) == []
    assert core.counters["duplicate_rooms"] == 1


def test_the_same_room_again_is_refused_while_its_pages_are_in_quarantine() -> None:
    core = in_transfer()
    core.handle(Cancelled(key(), CANCELLED), 1.0)
    assert causes(core.handle(submitted(), 1.0)) == [Cause.REQUEST_DUPLICATE]


def test_a_room_gets_memory_only_when_all_it_may_ever_need_is_there() -> None:
    core = paired(pages=4)
    core.handle(submitted(1, tokens=4, most=9), 0.0)  # 1 page now, 3 in the end
    assert said(core.handle(submitted(2, tokens=4, most=5), 0.0), Destination) == []
    assert said(core.handle(submitted(3, tokens=4, most=1), 0.0), Destination) == []
    core.handle(came(progress(Status.FAILED, 1)), 1.0)
    assert core.recorder.counts()["transfer"] == 2


def test_rooms_wait_for_a_row() -> None:
    core = paired(rows=1)
    core.handle(submitted(1), 0.0)
    assert said(core.handle(submitted(2), 0.0), Destination) == []
    core.handle(came(progress(Status.SUCCESS, 1)), 1.0)
    (where,) = said(core.handle(row_read(1), 1.0), Destination)
    assert where.room == 2


def test_a_room_whose_prefill_is_not_there_holds_up_nobody() -> None:
    core = paired()
    core.handle(submitted(1, prefill="p9"), 0.0)
    (where,) = said(core.handle(submitted(2), 0.0), Destination)
    assert where.room == 2


@pytest.mark.parametrize("event", [came(answer(refused="model: ours 'a', theirs 'b'"))])
def test_a_refusal_fails_the_rooms_that_wait_with_both_values(event: object) -> None:
    core = decode_core()
    core.handle(submitted(), 0.0)
    core.handle(route(), 0.1)
    (output,) = told(core.handle(event, 0.2))  # type: ignore[arg-type]
    assert output.failure is not None
    assert output.failure.cause is Cause.HANDSHAKE_REFUSED
    assert output.failure.detail == "model: ours 'a', theirs 'b'"
    assert is_idle(core)


def test_waiting_for_memory_has_its_own_deadline() -> None:
    core = running(most=9)
    core.handle(submitted(2, tokens=30), 0.0)
    heard(core, 19.9)
    assert causes(core.handle(Tick(), 19.9)) == []
    commands = core.handle(Tick(), 20.0)
    (output,) = told(commands)
    assert output.failure is not None
    assert output.failure.cause is Cause.QUEUE_TIMEOUT
    assert output.failure.detail == "8 pages were not free within 20 s"


def test_rooms_get_memory_by_priority_and_age() -> None:
    core = decode_core(pages=2, ageing_s=5.0)
    for room, priority, at_s in ((1, 0, 0.0), (2, 0, 1.0), (3, 1, 4.0), (4, 1, 7.0)):
        core.handle(submitted(room, priority=priority), at_s)
    assert [room.key for room in core.stages.prealloc.rooms.values()] == [
        key(3),
        key(1),
        key(2),
        key(4),
    ]


def test_credits_tell_what_is_promised_to_nobody_and_who_waits() -> None:
    core = paired(pages=8)
    whole = {"tokens": 32, "rows": 4, "places": 128, "queue": 0}
    assert core.credits == whole
    core.handle(submitted(1, tokens=6, most=9), 0.0)
    assert core.credits == {"tokens": 16, "rows": 3, "places": 127, "queue": 0}
    core.handle(submitted(2, tokens=20, most=1), 0.0)
    assert core.credits["queue"] == 1
    assert retracted()[0].credits == {"tokens": 0, "rows": 4, "places": 126, "queue": 1} | {
        "tokens": 4 * (6 + 16 - 4 - 6 - 3 - 2)  # host less a room, less both rooms, copied twice
    }


def test_a_grammar_that_is_there_before_the_pages_holds_nothing_back() -> None:
    core = paired()
    core.handle(submitted(1, sampling=GUIDED), 0.0)
    core.handle(Prepared(key(1)), 0.5)
    core.handle(Prepared(key(9)), 0.5)  # of a room that is gone
    core.handle(came(SUCCESS), 1.0)
    assert len(of(core.handle(row_read(), 1.0), Run)) == 1
