"""How rooms of a prefill end, through the whole core."""

from __future__ import annotations

from daemons.engine.step import End, StepFailed
from daemons.kv.ledger import Owner
from daemons.prefill.commands import CallOffWrites, WriteKV
from daemons.prefill.events import WriteDone, WriteFailed, WriteSkipped
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.handshake import AbortAnswer, Fence, Progress
from daemons.protocol.metadata import ROW_BYTES
from daemons.protocol.status import Status
from daemons.runtime.commands import Log
from daemons.runtime.events import Cancelled, Tick
from tests.support.cores import (
    CANCELLED,
    abort,
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
from tests.support.prefill_scenes import in_flight, in_forward, layered, paired


def test_a_cancel_before_the_destination_ends_the_room_and_answers_the_destination() -> None:
    core = paired()
    core.handle(submitted(), 0.0)
    assert causes(core.handle(Cancelled(key(), CANCELLED), 1.0)) == [Cause.CLIENT_CANCELLED]
    (late,) = said(core.handle(came(destination()), 2.0), Progress)
    assert late.failure == CANCELLED
    assert is_idle(core)


def test_a_cancel_during_the_forward_frees_the_pages_after_it() -> None:
    core = in_forward()
    commands = core.handle(Cancelled(key(), CANCELLED), 1.0)
    assert causes(commands) == [Cause.CLIENT_CANCELLED]
    assert [p.status for p in said(commands, Progress)] == [Status.FAILED]
    assert of(commands, End) == []
    assert core.pages.free == 6
    commands = core.handle(done(1, token=0), 2.0)
    assert of(commands, End) == [End(key())]
    assert of(commands, WriteKV) == []
    assert is_idle(core)


def test_a_cancel_during_a_write_says_failed_only_when_it_is_over() -> None:
    core = in_flight()
    commands = core.handle(Cancelled(key(), CANCELLED), 3.0)
    assert causes(commands) == [Cause.CLIENT_CANCELLED]
    assert of(commands, CallOffWrites) == [CallOffWrites(key())]
    assert said(commands, Progress) == []
    assert said(core.handle(WriteSkipped(key()), 4.0), Progress) == []
    assert core.pages.owner(0) == (Owner.REQUEST, key())
    (last,) = said(core.handle(WriteDone(key(), 9), 5.0), Progress)
    assert (last.status, last.fence, last.failure) == (Status.FAILED, Fence.CLEAN, CANCELLED)
    assert is_idle(core)


def test_a_cancel_again_or_of_nothing_changes_nothing() -> None:
    core = in_flight()
    core.handle(Cancelled(key(), CANCELLED), 3.0)
    assert core.handle(Cancelled(key(), CANCELLED), 3.0) == []
    assert core.handle(Cancelled(key(9), CANCELLED), 3.0) == []


def test_the_first_cause_wins() -> None:
    core = in_flight()
    core.handle(Cancelled(key(), CANCELLED), 3.0)
    commands = core.handle(WriteFailed(key(), cut=True, detail="no progress"), 4.0)
    assert causes(commands) == []
    core.handle(WriteSkipped(key()), 4.0)
    (story,) = core.recorder.stories(1)
    assert story.failure == CANCELLED
    closing = [dict(log.facts) for log in of(core.handle(Tick(), 5.0), Log)]
    assert closing == []


def test_a_cancelled_room_ends_with_the_forward_that_breaks() -> None:
    core = in_forward()
    core.handle(Cancelled(key(), CANCELLED), 0.5)
    assert causes(core.handle(StepFailed((key(1),), "broke"), 1.0)) == []
    assert is_idle(core)


def test_tombstones_are_forgotten_in_time() -> None:
    core = paired()
    core.handle(came(abort()), 0.0)
    core.handle(Tick(), 99.0)
    assert len(core.tombs) == 1
    core.handle(Tick(), 100.0)
    assert len(core.tombs) == 0


def test_every_end_has_one_closing_line_with_its_cause() -> None:
    core = in_forward()
    commands = core.handle(came(abort(failure=Failure(Cause.PEER_DIED, "transfer", "p0"))), 1.0)
    commands += core.handle(done(1, token=0), 2.0)
    (closing,) = (dict(log.facts) for log in of(commands, Log) if log.event == "room.closed")
    assert closing["cause"] == "peer.died"
    assert closing["peer"] == "d0"
    assert core.counters["rooms_failed"] == 1
    assert core.counters["failed:peer.died"] == 1


def test_what_had_landed_before_the_forward_ended_is_the_hidden_share() -> None:
    core = layered()
    core.handle(WriteDone(key(), 400, early_bytes=300), 0.5)  # while the prompt is computed: all
    core.handle(done(1, token=0), 1.0)
    core.handle(done(1), 2.0)
    core.handle(WriteDone(key(), 600, early_bytes=350), 3.0)
    core.handle(WriteDone(key(), ROW_BYTES), 3.0)
    (story,) = core.recorder.stories(1)
    assert story.facts["overlap_fraction"] == "0.750"
    assert core.counters["early_bytes"] == 750


def test_a_room_tells_how_long_its_writes_took_and_that_nothing_was_hidden() -> None:
    core = in_forward()
    core.handle(done(1, token=0), 1.0)
    core.handle(done(1), 2.0)
    core.handle(WriteDone(key(), ROW_BYTES + 400, transport="tcp", wire_s=0.25), 3.0)
    core.handle(WriteDone(key(), 100, wire_s=0.5), 3.0)
    (story,) = core.recorder.stories(1)
    assert not story.open
    assert (story.facts["wire_s"], story.facts["overlap_fraction"]) == ("0.750000", "0.000")
    assert story.facts["transport"] == "tcp"


def test_a_broken_forward_is_told_to_decode_when_the_write_that_follows_it_is_over() -> None:
    core = layered()
    commands = core.handle(StepFailed((key(),), "no memory"), 1.0)
    assert of(commands, CallOffWrites) == [CallOffWrites(key())]
    assert said(commands, Progress) == []
    assert core.pages.owner(0) == (Owner.REQUEST, key())
    (failed,) = said(core.handle(WriteSkipped(key()), 1.0), Progress)
    assert (failed.status, failed.fence) == (Status.FAILED, Fence.CLEAN)
    assert is_idle(core)


def test_an_aborted_room_keeps_its_pages_until_both_forward_and_write_are_over() -> None:
    core = layered()
    commands = core.handle(came(abort()), 1.0)
    assert said(commands, AbortAnswer) == []
    commands = core.handle(WriteSkipped(key()), 1.0)
    assert said(commands, Progress)[0].status is Status.FAILED
    assert core.pages.owner(0) == (Owner.REQUEST, key())
    core.handle(done(1, token=0), 2.0)
    assert is_idle(core)
