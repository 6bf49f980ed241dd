"""How rooms of a decode end, through the whole core."""

from __future__ import annotations

from daemons.engine.step import End
from daemons.protocol.causes import Cause
from daemons.protocol.generate import LookUp
from daemons.protocol.handshake import Abort, AbortAnswer, Fence
from daemons.protocol.metadata import RowState
from daemons.protocol.status import Status
from daemons.runtime.commands import Log, Probe
from daemons.runtime.events import Cancelled, Probed, Tick
from tests.support.cores import (
    CANCELLED,
    P_NEXT,
    D,
    P,
    came,
    causes,
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
from tests.support.decode_scenes import SUCCESS, heard, in_transfer, running, with_looks


def test_a_cut_writer_keeps_the_pages_in_quarantine_until_they_settle() -> None:
    core = in_transfer()
    core.handle(came(progress(Status.FAILED, fence=Fence.CUT)), 1.0)
    assert core.pages.counts()["quarantined"] == 2
    assert core.rows.counts()["quarantined"] == 1
    for step in range(7):
        heard(core, 1.25 + step / 4)
        assert core.pages.counts()["quarantined"] == 2
    heard(core, 3.0)
    assert is_idle(core)


def test_success_after_failed_changes_nothing() -> None:
    core = in_transfer()
    core.handle(came(progress(Status.FAILED, fence=Fence.CUT)), 1.0)
    assert core.handle(came(SUCCESS), 1.1) == []
    assert core.pages.counts()["quarantined"] == 2


def test_a_cancel_before_any_memory_ends_the_room_and_tells_prefill_once() -> None:
    core = in_transfer(rows=1)
    core.handle(submitted(2), 0.0)
    commands = core.handle(Cancelled(key(2), CANCELLED), 1.0)
    assert causes(commands) == [Cause.CLIENT_CANCELLED]
    assert [a.room for a in said(commands, Abort)] == [2]
    heard(core, 3.0)
    assert said(core.handle(Tick(), 3.0), Abort) == []


def test_a_cancel_in_transfer_asks_the_writer_until_it_answers() -> None:
    core = in_transfer()
    commands = core.handle(Cancelled(key(), CANCELLED), 1.0)
    assert causes(commands) == [Cause.CLIENT_CANCELLED]
    assert said(commands, Abort) == [Abort(D, P.epoch, 1, 1, CANCELLED)]
    assert core.busy
    assert said(core.handle(Tick(), 1.9), Abort) == []
    assert said(core.handle(Tick(), 2.0), Abort) == [Abort(D, P.epoch, 1, 1, CANCELLED)]
    heard(core, 50.0)
    assert core.pages.counts()["quarantined"] == 2
    core.handle(came(AbortAnswer(P, D.epoch, 1, 1, Fence.CLEAN)), 51.0)
    assert is_idle(core)


def test_a_final_progress_answers_an_abort_too() -> None:
    core = in_transfer()
    core.handle(Cancelled(key(), CANCELLED), 1.0)
    assert causes(core.handle(came(progress(Status.FAILED)), 2.0)) == []
    assert is_idle(core)


def test_progress_that_is_not_final_answers_nothing() -> None:
    core = in_transfer()
    core.handle(Cancelled(key(), CANCELLED), 1.0)
    core.handle(came(progress(Status.TRANSFERRING)), 2.0)
    assert core.pages.counts()["quarantined"] == 2


def test_a_cancel_after_success_needs_no_answer() -> None:
    core = in_transfer()
    core.handle(came(SUCCESS), 1.0)
    commands = core.handle(Cancelled(key(), CANCELLED), 1.0)
    assert said(commands, Abort) == []
    assert is_idle(core)


def test_a_cancel_in_the_batch_takes_effect_with_the_step() -> None:
    core = running()
    assert causes(core.handle(Cancelled(key(), CANCELLED), 1.5)) == [Cause.CLIENT_CANCELLED]
    assert core.pages.free < core.pages.size
    commands = core.handle(done(1), 2.0)
    assert told(commands) == []
    assert of(commands, End) == [End(key())]
    assert is_idle(core)


def test_a_cancel_again_or_of_nothing_changes_nothing() -> None:
    core = running()
    core.handle(Cancelled(key(), CANCELLED), 1.5)
    assert core.handle(Cancelled(key(), CANCELLED), 1.6) == []
    assert core.handle(Cancelled(key(9), CANCELLED), 1.6) == []


def test_a_row_that_a_dead_prefill_was_writing_is_not_called_clean() -> None:
    core = in_transfer()
    commands = with_looks(core, Probed(P, refused=True), 1.0, RowState.WRONG)
    assert causes(commands) == [Cause.PEER_DIED]
    assert core.pages.counts()["quarantined"] == 2


def test_a_silent_prefill_loses_its_rooms_but_their_memory_stays_until_it_speaks() -> None:
    core = in_transfer()
    commands = with_looks(core, Tick(), 5.0)
    assert causes(commands) == [Cause.PEER_UNREACHABLE]
    assert of(commands, Probe) == [Probe(P, "p.host", 8000)]
    for step in range(20):
        core.handle(Tick(), 10.0 + step)
    assert core.pages.counts()["quarantined"] == 2
    core.handle(came(AbortAnswer(P, D.epoch, 1, 1, Fence.CLEAN)), 31.0)
    assert is_idle(core)


def test_a_silent_prefill_whose_memory_is_held_is_looked_up_for_proof() -> None:
    core = in_transfer()
    with_looks(core, Tick(), 5.0)
    assert of(core.handle(Tick(), 6.0), LookUp) == [LookUp("p0")]
    core.handle(route(P_NEXT), 6.1)
    for step in range(8):
        core.handle(Tick(), 6.35 + step / 4)
    assert is_idle(core)


def test_time_in_which_the_process_was_frozen_does_not_settle_anything() -> None:
    core = in_transfer()
    core.handle(came(progress(Status.FAILED, fence=Fence.CUT)), 1.0)
    core.handle(Tick(), 60.0)
    assert core.pages.counts()["quarantined"] == 2


def test_every_end_has_one_closing_line() -> None:
    core = running(most=1 + 1)
    commands = core.handle(done(1), 2.0)
    (closing,) = (dict(log.facts) for log in of(commands, Log) if log.event == "room.closed")
    assert closing["outcome"] == "ok"
    assert closing["output_tokens"] == 2
    assert core.counters["rooms_done"] == 1
    (story,) = core.recorder.stories(1)
    assert [line.entered for line in story.lines if line.left != line.entered] == [
        "prealloc",
        "transfer",
        "prebuilt",
        "running",
        "",
    ]
