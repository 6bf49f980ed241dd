"""The hand-over at the prefill's side, through the whole core."""

from __future__ import annotations

from daemons.engine.config import EngineConfig
from daemons.engine.step import Run
from daemons.prefill.commands import CallOffWrites, WriteKV
from daemons.prefill.events import WriteDone, WriteFailed, WriteSkipped
from daemons.protocol.causes import Cause
from daemons.protocol.generate import FinishReason
from daemons.protocol.handshake import AbortAnswer, Fence, Progress
from daemons.protocol.status import Status
from daemons.runtime.commands import Probe
from daemons.runtime.events import Tick
from daemons.transfer.config import TransferConfig
from tests.support.cores import (
    D,
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
    told,
)
from tests.support.prefill_scenes import heard, in_flight, in_forward, paired


def test_a_first_token_that_ends_the_text_is_told_so() -> None:
    core = in_flight()
    core.handle(WriteDone(key(), 1), 3.0)
    assert told(core.handle(WriteDone(key(), 1), 3.0))[0].finish_token is None
    core = in_forward(tokens=2)
    core.handle(done(1, token=999), 1.0)
    (output,) = told(core.handle(WriteDone(key(), 1), 2.0))
    assert (output.finish, output.finish_token) == (FinishReason.STOP, 999)


def test_a_cut_write_fails_both_sides_and_says_that_bytes_may_land() -> None:
    core = in_flight()
    commands = core.handle(WriteFailed(key(), cut=True, detail="no progress"), 3.0)
    assert causes(commands) == [Cause.TRANSFER_FAILED]
    assert of(commands, CallOffWrites) == [CallOffWrites(key())]
    assert of(commands, Probe) == [Probe(D, "d.host", 9000)]
    (last,) = said(core.handle(WriteSkipped(key()), 3.0), Progress)
    assert last.fence is Fence.CUT
    (answered,) = said(core.handle(came(abort()), 4.0), AbortAnswer)
    assert answered.fence is Fence.CUT
    assert is_idle(core)


def test_after_a_cut_write_the_next_room_is_tried_again() -> None:
    core = in_flight()
    core.handle(WriteFailed(key(), cut=True, detail="reset"), 3.0)
    core.handle(submitted(2), 4.0)
    assert of(core.handle(came(destination(2)), 4.0), Run)


def test_after_several_cut_writes_rooms_fail_early_and_later_one_is_tried() -> None:
    core = paired()
    for room in (1, 2, 3):
        core.handle(submitted(room), 0.0)
        core.handle(came(destination(room)), 0.0)
        core.handle(done(room, token=0), 1.0)
        core.handle(WriteFailed(key(room), cut=True, detail="reset"), 1.0)
        core.handle(done(room), 1.0)
    core.handle(submitted(4), 2.0)
    commands = core.handle(came(destination(4)), 2.0)
    assert causes(commands) == [Cause.TRANSFER_FAILED]
    (final,) = said(commands, Progress)
    assert (final.status, final.fence) == (Status.FAILED, Fence.CLEAN)
    core.handle(submitted(5), 7.0)
    assert of(core.handle(came(destination(5)), 7.0), Run)
    core.handle(done(5, token=0), 7.1)
    core.handle(WriteDone(key(5), 100), 7.2)
    core.handle(submitted(6), 7.3)
    assert causes(core.handle(came(destination(6)), 7.3)) == []


def test_a_write_that_reached_nobody_leaves_a_clean_fence() -> None:
    core = in_flight()
    core.handle(WriteFailed(key(), cut=False, detail="nobody answers"), 3.0)
    (last,) = said(core.handle(WriteSkipped(key()), 3.0), Progress)
    assert last.fence is Fence.CLEAN


def test_a_write_that_was_skipped_for_no_reason_fails_the_room() -> None:
    core = in_flight()
    assert causes(core.handle(WriteSkipped(key()), 3.0)) == [Cause.TRANSFER_FAILED]


def test_a_report_about_a_room_that_is_gone_is_let_be() -> None:
    core = paired()
    assert core.handle(WriteDone(key(), 1), 0.0) == []
    assert core.handle(done(1), 0.0) == []


def test_bytes_that_do_not_move_fail_the_room() -> None:
    core = in_flight()
    heard(core, 13.9)
    assert causes(core.handle(Tick(), 13.9)) == []
    assert causes(core.handle(Tick(), 14.0)) == [Cause.PROGRESS_TIMEOUT]


def test_a_room_that_waits_behind_another_in_the_lane_makes_progress_with_it() -> None:
    engine = EngineConfig(page_size=4, chunk_tokens=8, batch_tokens=8)
    core = paired(engine=engine)
    for room in (1, 2):
        core.handle(submitted(room), 0.0)
        core.handle(came(destination(room)), 0.0)
        core.handle(done(room), 1.0)
    core.handle(WriteDone(key(1), 1), 11.0)
    heard(core, 20.0)
    assert causes(core.handle(Tick(), 20.0)) == []
    assert causes(core.handle(Tick(), 23.0)) == [Cause.PROGRESS_TIMEOUT]


def test_the_pages_of_a_chunk_are_handed_over_with_its_forward_and_the_row_after_the_last() -> None:
    core = paired(transfer=TransferConfig(grain="layer"))
    core.handle(submitted(), 0.0)
    commands = core.handle(came(destination()), 0.0)
    (run,), (write,) = of(commands, Run), of(commands, WriteKV)
    assert (run.step, write.step) == (1, 1)
    assert (write.source_pages, write.target_pages, write.row) == ((0,), (10,), None)
    commands = core.handle(done(1, token=0), 1.0)
    (run,), (write,) = of(commands, Run), of(commands, WriteKV)
    assert (run.step, write.step) == (2, 2)
    assert (write.source_pages, write.target_pages, write.row) == ((1,), (11,), None)
    commands = core.handle(done(1), 2.0)
    (write,) = of(commands, WriteKV)
    assert (write.source_pages, write.target_pages, write.step) == ((), (), 0)
    assert write.row is not None
    for _ in range(2):
        assert not core.tombs
        core.handle(WriteDone(key(), 100), 3.0)
    assert [p.status for p in said(core.handle(WriteDone(key(), 50), 3.0), Progress)] == [
        Status.SUCCESS
    ]
    assert is_idle(core)
