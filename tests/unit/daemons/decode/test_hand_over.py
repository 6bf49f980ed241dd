"""The hand-over at the decode's side, through the whole core."""

from __future__ import annotations

from typing import Any

import pytest

from daemons.decode.commands import ReadRow, VerifySums
from daemons.decode.events import RowRead, SumsVerified
from daemons.decode.hand_over import unsummed
from daemons.decode.scheduler import Scheduler
from daemons.kv.stretch import Stretch
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import TokenOut
from daemons.protocol.handshake import Abort, Destination
from daemons.protocol.metadata import ChunkSum, Row, RowState
from daemons.protocol.status import Status
from daemons.runtime.events import Cancelled, Probed, Tick
from daemons.transfer.config import TransferConfig
from tests.support.cores import (
    CANCELLED,
    P_NEXT,
    TIMERS,
    P,
    came,
    causes,
    is_idle,
    key,
    of,
    progress,
    route,
    said,
    submitted,
    told,
)
from tests.support.decode_scenes import SUCCESS, heard, in_transfer, paired, row_read


def test_progress_of_another_writer_is_let_be() -> None:
    core = in_transfer()
    core.handle(route(P_NEXT), 0.5)
    stranger = progress(Status.SUCCESS, sender=P)
    assert of(core.handle(came(stranger), 1.0), ReadRow) == []


def test_failed_by_prefill_ends_the_room_with_its_cause_and_frees_all_at_once() -> None:
    core = in_transfer()
    failure = Failure(Cause.ENGINE_FAILED, "forward", "p0", "out of memory")
    commands = core.handle(came(progress(Status.FAILED, failure=failure)), 1.0)
    assert [output.failure for output in told(commands)] == [failure]
    assert said(commands, Abort) == []
    assert is_idle(core)


def test_a_failure_without_a_cause_blames_the_peer() -> None:
    core = in_transfer()
    assert causes(core.handle(came(progress(Status.FAILED)), 1.0)) == [Cause.PEER_ABORTED]


def test_a_row_that_is_still_empty_is_looked_at_again() -> None:
    core = in_transfer()
    core.handle(came(SUCCESS), 1.0)
    assert core.handle(RowRead(key(), RowState.EMPTY, None), 1.0) == []
    assert of(core.handle(Tick(), 1.1), ReadRow) == [ReadRow(key(), 0)]


def test_a_row_that_stays_empty_fails_the_room_in_the_end() -> None:
    core = in_transfer()
    core.handle(came(SUCCESS), 1.0)
    heard(core, 15.0)
    assert causes(core.handle(Tick(), 15.0)) == [Cause.PROGRESS_TIMEOUT]
    assert is_idle(core)


def test_a_wrong_row_fails_the_room_and_no_token_of_it_is_told() -> None:
    core = in_transfer()
    core.handle(came(SUCCESS), 1.0)
    commands = core.handle(RowRead(key(), RowState.WRONG, None), 1.0)
    assert causes(commands) == [Cause.TRANSFER_BAD_ROW]
    assert all(output.tokens == () for output in told(commands))
    assert is_idle(core)


SUMS = (ChunkSum(0, 1, 77), ChunkSum(1, 1, 78))


def landed_with_sums() -> Scheduler:
    """Room 1's row is right, and has sums to compare."""
    core = in_transfer()
    core.handle(came(SUCCESS), 1.0)
    row = Row(key(), TokenOut(5), 0, SUMS)
    commands = core.handle(RowRead(key(), RowState.RIGHT, row), 1.0)
    assert of(commands, VerifySums) == [VerifySums(key(), Stretch(0, (0, 1)), SUMS, 6)]
    assert told(commands) == []
    return core


def test_a_room_whose_sums_are_right_goes_on() -> None:
    core = landed_with_sums()
    commands = core.handle(SumsVerified(key()), 1.1)
    assert [output.tokens for output in told(commands)] == [(TokenOut(5),)]
    assert core.counters["chunks_verified"] == 2


def test_a_room_whose_sums_differ_fails_with_both_and_no_token_of_it_is_told() -> None:
    core = landed_with_sums()
    commands = core.handle(SumsVerified(key(), "prefill's sum 1, ours 2"), 1.1)
    (output,) = told(commands)
    assert output.failure is not None
    assert output.failure.cause is Cause.TRANSFER_CHECKSUM
    assert output.failure.detail == "prefill's sum 1, ours 2"
    assert output.tokens == ()
    assert core.counters["checksum_mismatches"] == 1
    assert is_idle(core)


ALL = TransferConfig(checksum="all")


@pytest.mark.parametrize("checksum", ["off", "sampled"])
def test_pages_without_a_sum_are_good_where_no_sums_are_demanded(checksum: Any) -> None:
    core = in_transfer(transfer=TransferConfig(checksum=checksum))
    core.handle(came(SUCCESS), 1.0)
    assert [output.tokens for output in told(core.handle(row_read(), 1.0))] == [(TokenOut(5),)]


@pytest.mark.parametrize(("sums", "missing"), [((), "pages 0 to 1"), (SUMS[:1], "pages 1 to 1")])
def test_where_all_is_demanded_pages_without_a_sum_fail_the_room_and_name_the_setting(
    sums: tuple[ChunkSum, ...], missing: str
) -> None:
    core = in_transfer(transfer=ALL)
    core.handle(came(SUCCESS), 1.0)
    row = Row(key(), TokenOut(5), 0, sums)
    commands = core.handle(RowRead(key(), RowState.RIGHT, row), 1.0)
    assert of(commands, VerifySums) == []
    (output,) = told(commands)
    assert output.tokens == ()
    assert output.failure is not None
    assert output.failure.cause is Cause.TRANSFER_CHECKSUM
    assert missing in output.failure.detail
    assert "transfer.checksum is all here and must be all for p0" in output.failure.detail
    assert core.counters["checksums_missing"] == 1
    assert is_idle(core)


def test_where_all_is_demanded_a_room_with_all_sums_goes_on() -> None:
    core = in_transfer(transfer=ALL)
    core.handle(came(SUCCESS), 1.0)
    row = Row(key(), TokenOut(5), 0, SUMS)
    (check,) = of(core.handle(RowRead(key(), RowState.RIGHT, row), 1.0), VerifySums)
    assert check.sums == SUMS


@pytest.mark.parametrize(
    ("sums", "missing"),
    [
        ([], "pages 2 to 6"),
        ([(2, 5)], ""),
        ([(4, 3), (2, 2)], ""),
        ([(2, 1), (4, 3)], "pages 3 to 3"),
        ([(3, 4)], "pages 2 to 2"),
        ([(2, 4)], "pages 6 to 6"),
        ([(2, 4), (3, 1), (6, 1)], ""),
        ([(9, 1)], "pages 2 to 6"),
    ],
)
def test_the_first_pages_that_no_sum_is_over_are_named(
    sums: list[tuple[int, int]], missing: str
) -> None:
    offered = Stretch(3, (9, 8, 7, 6), 2, (1, 2, 3, 4, 5))
    assert unsummed(offered, [ChunkSum(first, count, 0) for first, count in sums]) == missing


def test_of_nothing_no_sum_is_missing() -> None:
    assert unsummed(Stretch(4, ()), ()) == ""


def test_while_sums_are_compared_the_row_is_not_looked_at_again() -> None:
    core = landed_with_sums()
    row = Row(key(), TokenOut(5), 0, SUMS)
    assert core.handle(RowRead(key(), RowState.RIGHT, row), 1.1) == []


def test_a_comparison_of_a_room_that_is_over_is_let_be() -> None:
    core = landed_with_sums()
    core.handle(Cancelled(key(), CANCELLED), 1.0)
    assert is_idle(core)
    assert core.handle(SumsVerified(key()), 1.1) == []


def test_a_look_at_the_row_of_a_room_that_is_over_is_let_be() -> None:
    core = in_transfer()
    core.handle(came(SUCCESS), 1.0)
    core.handle(Cancelled(key(), CANCELLED), 1.0)
    assert core.handle(row_read(), 1.1) == []


@pytest.mark.parametrize("event", [Probed(P, refused=True), Tick()])
def test_a_hand_over_that_is_whole_outlives_its_prefill_and_the_message_about_it(
    event: Probed | Tick,
) -> None:
    core = in_transfer()
    commands = core.handle(event, 5.0)
    assert of(commands, ReadRow) == [ReadRow(key(1), 0)]
    commands = core.handle(row_read(), 5.0)
    assert causes(commands) == []
    assert core.recorder.stage(key(1)) == "running"


@pytest.mark.parametrize(
    ("status", "limit_s", "cause"),
    [
        (Status.BOOTSTRAPPING, TIMERS.destination_s + 2, Cause.PEER_NEVER_CAME),
        (Status.WAITING_FOR_INPUT, TIMERS.queue_s + 2, Cause.QUEUE_TIMEOUT),
        (Status.TRANSFERRING, TIMERS.progress_s + 2, Cause.PROGRESS_TIMEOUT),
    ],
)
def test_each_wait_for_prefill_has_its_own_deadline(
    status: Status, limit_s: float, cause: Cause
) -> None:
    core = in_transfer()
    if status is not Status.BOOTSTRAPPING:
        core.handle(came(progress(status)), 0.0)
    heard(core, limit_s - 0.1)
    assert causes(core.handle(Tick(), limit_s - 0.1)) == []
    assert causes(core.handle(Tick(), limit_s)) == [cause]
    assert core.pages.counts()["quarantined"] == 2


def test_bytes_of_one_room_are_progress_of_those_that_wait_behind_it() -> None:
    core = paired()
    for room in (1, 2):
        core.handle(submitted(room), 0.0)
        core.handle(came(progress(Status.TRANSFERRING, room)), 0.0)
    core.handle(came(progress(Status.TRANSFERRING, 1, sent_bytes=5)), 10.0)
    heard(core, 20.0)
    assert causes(core.handle(Tick(), 20.0)) == []
    assert causes(core.handle(Tick(), 24.0)) == [Cause.PROGRESS_TIMEOUT] * 2


def test_prefill_is_told_again_where_a_room_goes_when_nothing_is_heard_of_it() -> None:
    core = paired()
    (first,) = said(core.handle(submitted(), 0.0), Destination)
    heard(core, 1.0)
    assert said(core.handle(Tick(), 1.0), Destination) == []
    heard(core, 2.0)
    assert said(core.handle(Tick(), 2.0), Destination) == [first]
    assert said(core.handle(Tick(), 3.0), Destination) == []
    assert of(core.handle(came(SUCCESS), 3.1), ReadRow)  # as its tombstone answers


def test_a_silent_prefill_is_not_told_again() -> None:
    core = in_transfer()
    core.handle(Tick(), 5.0)
    assert said(core.handle(Tick(), 6.0), Destination) == []
