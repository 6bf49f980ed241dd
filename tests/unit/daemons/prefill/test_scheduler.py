"""The prefill core: events in, commands out."""

from __future__ import annotations

import pytest

from daemons.engine.config import EngineConfig
from daemons.engine.step import Begin, End, Prepare, Prepared, Run, StepFailed
from daemons.kv.ledger import Owner
from daemons.prefill.commands import CallOffWrites, LearnBuffers, WriteKV
from daemons.prefill.events import WriteDone, WriteFailed, WriteSkipped
from daemons.prefill.scheduler import EPOCH_AHEAD_S, PEERS_LIMIT
from daemons.protocol.causes import Cause
from daemons.protocol.generate import FinishReason, Sampling
from daemons.protocol.handshake import AbortAnswer, Fence, Heartbeat, Progress, RegistrationAnswer
from daemons.protocol.ids import PeerId
from daemons.protocol.metadata import RowState, unpack
from daemons.protocol.status import Status
from daemons.runtime.commands import Connect, Disconnect, Probe, SendHeartbeat
from daemons.runtime.events import (
    Cancelled,
    ConnectionLost,
    Draining,
    Finished,
    Probed,
    Stopping,
    Tick,
)
from daemons.transfer.config import TransferConfig
from tests.support.cores import (
    CANCELLED,
    D_NEXT,
    D_OTHER,
    FINGERPRINT,
    GUIDED,
    D,
    P,
    abort,
    buffers,
    came,
    causes,
    destination,
    done,
    key,
    of,
    prefill_core,
    said,
    submitted,
    told,
)
from tests.support.prefill_scenes import heard, in_flight, in_forward, is_idle, layered, paired

# --- one room, told once ---


def test_a_room_goes_from_request_to_the_last_byte() -> None:
    core = paired()
    assert of(core.handle(submitted(), 0.0), Run) == []
    commands = core.handle(came(destination()), 0.0)
    assert [p.status for p in said(commands, Progress)] == [Status.WAITING_FOR_INPUT] * 2
    assert [begin.sequence.key for begin in of(commands, Begin)] == [key()]
    ((item,),) = (run.items for run in of(commands, Run))
    assert (item.tokens, item.start, item.samples) == ((1, 2, 3, 4), 0, False)
    commands = core.handle(done(1, token=0), 1.0)
    (write,) = of(commands, WriteKV)
    assert (write.source_pages, write.target_pages, write.row) == ((0,), (10,), None)
    ((item,),) = (run.items for run in of(commands, Run))
    assert (item.tokens, item.start, item.samples) == ((5, 6), 4, True)
    commands = core.handle(done(1, token=7), 2.0)
    (write,) = of(commands, WriteKV)
    assert (write.source_pages, write.target_pages, write.target_row) == ((1,), (11,), 3)
    assert write.row is not None
    state, row = unpack(write.row, key())
    assert state is RowState.RIGHT
    assert row is not None
    assert row.first.id == 7
    assert of(commands, End) == [End(key())]
    (first,) = told(commands)
    assert ([token.id for token in first.tokens], first.finish) == ([7], None)
    commands = core.handle(WriteDone(key(), 100), 3.0)
    assert [p.status for p in said(commands, Progress)] == [Status.TRANSFERRING]
    commands = core.handle(WriteDone(key(), 50), 4.0)
    (last,) = said(commands, Progress)
    assert (last.status, last.sent_bytes, last.fence) == (Status.SUCCESS, 150, Fence.CLEAN)
    (output,) = told(commands)
    assert (output.tokens, output.finish) == ((), FinishReason.LENGTH)
    assert is_idle(core)


def test_the_two_halves_of_a_room_come_in_any_order() -> None:
    core = paired()
    core.handle(came(destination()), 0.0)
    assert core.busy
    assert of(core.handle(submitted(), 1.0), Run)


def test_a_first_token_that_ends_the_text_is_told_so() -> None:
    core = in_flight()
    core.handle(WriteDone(key(), 1), 3.0)
    assert told(core.handle(WriteDone(key(), 1), 3.0))[0].finish_token is None
    core = in_forward(tokens=2)
    core.handle(done(1, token=999), 1.0)
    (output,) = told(core.handle(WriteDone(key(), 1), 2.0))
    assert (output.finish, output.finish_token) == (FinishReason.STOP, 999)


def test_prompt_log_probabilities_are_told_when_asked_for() -> None:
    core = paired()
    core.handle(submitted(tokens=2, sampling=Sampling(prompt_logprobs=1)), 0.0)
    core.handle(came(destination(tokens=2)), 0.0)
    (output,) = told(core.handle(done(1), 1.0))
    assert output.prompt_logprobs == ()
    assert told(core.handle(WriteDone(key(), 1), 2.0))[0].prompt_logprobs is None


def test_at_most_one_forward_is_under_way() -> None:
    core = in_forward()
    core.handle(submitted(2), 1.0)
    assert of(core.handle(came(destination(2)), 1.0), Run) == []
    ((first, second),) = (run.items for run in of(core.handle(done(1, token=0), 2.0), Run))
    assert (first.key, second.key) == (key(1), key(2))


def test_a_room_waits_for_memory_and_comes_before_later_ones() -> None:
    core = paired(pages=3)
    for room, tokens in ((1, 8), (2, 8), (3, 4)):
        core.handle(submitted(room, tokens), 0.0)
        core.handle(came(destination(room, tokens)), 0.0)
    assert core.recorder.counts() == {"bootstrap": 0, "waiting": 2, "forward": 1, "inflight": 0}
    commands = core.handle(Cancelled(key(2), CANCELLED), 1.0)
    assert [begin.sequence.key for begin in of(commands, Begin)] == [key(3)]


# --- refusals at the door ---


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


def test_a_stop_string_changes_nothing_here() -> None:
    core = in_forward()
    assert core.handle(Finished(key()), 1.0) == []
    assert core.busy


# --- destinations ---


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


# --- aborts ---


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


# --- bytes and forwards that fail ---


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


def test_one_room_of_a_forward_may_fail_alone() -> None:
    core = paired()
    for room in (1, 2):
        core.handle(submitted(room, 4), 0.0)
        core.handle(came(destination(room, 4)), 0.0)
    core.handle(done(1), 1.0)
    commands = core.handle(done(2, error="bad sampling"), 2.0)
    assert causes(commands) == [Cause.ENGINE_FAILED]
    assert of(commands, End) == [End(key(2))]
    assert core.recorder.stage(key(1)) == "inflight"


def test_a_forward_that_breaks_fails_all_its_rooms_and_the_next_one_runs() -> None:
    core = in_forward()
    core.handle(submitted(2, 4), 0.5)
    core.handle(came(destination(2, 4)), 0.5)
    commands = core.handle(StepFailed((key(1),), "out of memory"), 1.0)
    assert causes(commands) == [Cause.ENGINE_FAILED]
    ((item,),) = (run.items for run in of(commands, Run))
    assert item.key == key(2)


def test_a_prompt_that_ends_without_a_token_fails_and_holds_up_nobody() -> None:
    core = in_forward(tokens=4)
    core.handle(submitted(2, 4), 0.5)
    core.handle(came(destination(2, 4)), 0.5)
    commands = core.handle(done(1, token=0), 1.0)
    assert causes(commands) == [Cause.ENGINE_FAILED]
    assert of(commands, WriteKV) == []
    assert [item.key for run in of(commands, Run) for item in run.items] == [key(2)]


# --- peers ---


def test_a_registration_is_learnt_and_answered_once_more_when_repeated() -> None:
    core = prefill_core()
    commands = core.handle(came(buffers(D)), 0.0)
    assert of(commands, Connect) == [Connect(D, "d.host", 9000)]
    assert of(commands, LearnBuffers) == [LearnBuffers(D, buffers(D))]
    assert said(commands, RegistrationAnswer) == [RegistrationAnswer(P, D.epoch, "")]
    again = core.handle(came(buffers(D)), 1.0)
    assert of(again, LearnBuffers) == []
    assert said(again, RegistrationAnswer) == [RegistrationAnswer(P, D.epoch, "")]


def test_a_registration_that_does_not_match_is_refused_with_both_values() -> None:
    core = prefill_core()
    other = buffers(D, fingerprint=FINGERPRINT.__class__("m2", "fp32", 4, 1, 1, 8))
    commands = core.handle(came(other), 0.0)
    (refusal,) = said(commands, RegistrationAnswer)
    assert refusal.refused == "model: ours 'm', theirs 'm2'"
    assert of(commands, LearnBuffers) == []
    assert said(core.handle(came(destination()), 1.0), Progress) == []
    assert core.counters["messages_from_strangers"] == 1


def test_messages_of_strangers_are_counted_and_change_nothing() -> None:
    core = prefill_core()
    for message in (destination(), abort(), RegistrationAnswer(D, P.epoch)):
        assert core.handle(came(message), 0.0) == []
    assert core.counters["messages_from_strangers"] == 3
    assert is_idle(core)


def test_a_dead_decode_costs_its_rooms_and_gets_no_more_messages() -> None:
    core = in_flight()
    core.handle(came(destination(5)), 2.0)
    commands = core.handle(Probed(D, refused=True), 3.0)
    assert causes(commands) == [Cause.PEER_DIED]
    assert of(commands, Disconnect) == [Disconnect(D)]
    assert said(commands, Progress) == []
    assert core.stages.bootstrap.orphans == {}
    assert core.pages.free < core.pages.size
    core.handle(WriteFailed(key(), cut=True, detail="reset"), 4.0)
    assert said(core.handle(WriteSkipped(key()), 4.0), Progress) == []
    assert is_idle(core)


def test_a_probe_that_is_not_refused_proves_nothing() -> None:
    core = in_flight()
    assert core.handle(Probed(D, refused=False), 3.0) == []


def test_a_newer_life_is_the_death_of_the_older() -> None:
    core = in_flight()
    commands = core.handle(came(buffers(D_NEXT)), 3.0)
    assert causes(commands) == [Cause.PEER_DIED]
    assert of(commands, Disconnect) == [Disconnect(D)]
    assert of(commands, LearnBuffers) == [LearnBuffers(D_NEXT, buffers(D_NEXT))]


def test_a_refused_registration_is_nobodys_death() -> None:
    core = in_flight()
    other = buffers(D_NEXT, fingerprint=FINGERPRINT.__class__("m2", "fp32", 4, 1, 1, 8))
    commands = core.handle(came(other), 3.0)
    assert causes(commands) == []
    assert D in core.peers.addresses


def test_an_epoch_of_a_far_future_is_ignored_so_that_honest_ones_are_not_older() -> None:
    core = prefill_core()
    future = PeerId("d0", int(1000 * EPOCH_AHEAD_S) + 1)
    assert core.handle(came(buffers(future)), 0.0) == []
    assert core.counters["registrations_ignored"] == 1
    assert of(core.handle(came(buffers(D)), 1.0), LearnBuffers) == [LearnBuffers(D, buffers(D))]


def test_registrations_beyond_the_limit_of_peers_are_ignored() -> None:
    core = prefill_core()
    for epoch in range(PEERS_LIMIT):
        core.handle(came(buffers(PeerId(f"d{epoch}", 1 + epoch))), 0.0)
    assert core.handle(came(buffers(PeerId("e0", 1))), 0.0) == []
    assert len(core.peers.addresses) == PEERS_LIMIT


def test_a_refused_decode_that_falls_silent_is_forgotten() -> None:
    core = prefill_core()
    unlike = came(buffers(D, fingerprint=FINGERPRINT.__class__("m2", "fp32", 4, 1, 1, 8)))
    core.handle(unlike, 0.0)
    assert of(core.handle(Tick(), 5.0), Disconnect) == [Disconnect(D)]
    assert core.peers.addresses == {}
    assert said(core.handle(unlike, 9.0), RegistrationAnswer)  # silence was no proof of death


def test_an_older_life_that_registers_late_is_let_be() -> None:
    core = prefill_core()
    core.handle(came(buffers(D_NEXT)), 0.0)
    assert core.handle(came(buffers(D)), 1.0) == []


def test_a_silent_decode_loses_its_rooms_but_is_told_and_may_come_back() -> None:
    core = in_flight()
    commands = core.handle(Tick(), 6.0)
    assert causes(commands) == [Cause.PEER_UNREACHABLE]
    assert of(commands, Probe) == [Probe(D, "d.host", 9000)]
    core.handle(WriteDone(key(), 1), 6.5)
    (last,) = said(core.handle(WriteSkipped(key()), 6.5), Progress)
    assert last.status is Status.FAILED
    core.handle(came(Heartbeat(D, P.epoch, 1.0)), 7.0)
    core.handle(submitted(2), 7.0)
    assert of(core.handle(came(destination(2)), 7.0), Run)


def test_a_lost_connection_is_looked_into() -> None:
    core = paired()
    assert core.handle(ConnectionLost(D), 3.0) == [Probe(D, "d.host", 9000)]


def test_heartbeats_go_to_every_decode() -> None:
    core = paired()
    assert of(core.handle(Tick(), 1.0), SendHeartbeat) == [SendHeartbeat(D)]


# --- time ---


@pytest.mark.parametrize(
    ("begin", "limit_s", "cause", "stage"),
    [
        (lambda core: None, 15.0, Cause.PEER_NEVER_CAME, "bootstrap"),
        (
            lambda core: core.handle(came(destination(tokens=32)), 0.0),
            20.0,
            Cause.QUEUE_TIMEOUT,
            "waiting",
        ),
    ],
)
def test_each_wait_has_its_own_deadline(
    begin: object, limit_s: float, cause: Cause, stage: str
) -> None:
    core = paired(pages=8)
    core.pages.take(key(9), 1, Owner.REQUEST)  # so there is no place for 32 tokens
    core.handle(submitted(tokens=32), 0.0)
    begin(core)  # type: ignore[operator]
    heard(core, limit_s - 0.1)
    assert causes(core.handle(Tick(), limit_s - 0.1)) == []
    assert causes(core.handle(Tick(), limit_s)) == [cause]
    assert core.recorder.stories(1)[0].lines[-1].left == stage


def test_bytes_that_do_not_move_fail_the_room() -> None:
    core = in_flight()
    heard(core, 13.9)
    assert causes(core.handle(Tick(), 13.9)) == []
    assert causes(core.handle(Tick(), 14.0)) == [Cause.PROGRESS_TIMEOUT]


def test_a_forward_that_stands_still_fails_its_rooms_and_the_blame_is_ours() -> None:
    core = paired(engine=EngineConfig(page_size=4, chunk_tokens=4, batch_tokens=4))
    for room in (1, 2):
        core.handle(submitted(room), 0.0)
        core.handle(came(destination(room)), 0.0)
    core.handle(done(1, token=0), 11.0)  # room 2 is behind it in the queue
    heard(core, 22.9)
    assert causes(core.handle(Tick(), 22.9)) == []
    failures = [output.failure for output in told(core.handle(Tick(), 23.0))]
    assert [(f.cause, f.stage, f.peer) for f in failures if f] == [
        (Cause.PROGRESS_TIMEOUT, "forward", "p0")
    ] * 2
    assert core.pages.free < core.pages.size  # the engine may still write
    core.handle(done(1, 2), 24.0)
    core.handle(WriteSkipped(key(1)), 24.0)
    assert is_idle(core)


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


def test_the_clients_patience_ends_a_room_in_any_stage() -> None:
    core = paired()
    core.handle(submitted(timeout_s=3.0), 0.0)
    assert causes(core.handle(Tick(), 3.0)) == [Cause.TOTAL_TIMEOUT]
    assert is_idle(core)


def test_stopping_fails_what_is_left_and_answers_what_waits() -> None:
    core = in_forward()
    core.handle(submitted(2), 1.0)
    core.handle(came(destination(3)), 1.0)
    commands = core.handle(Stopping(), 2.0)
    assert causes(commands) == [Cause.INSTANCE_STOPPING] * 2
    failed = [p for p in said(commands, Progress) if p.status is Status.FAILED]
    assert {p.room for p in failed} == {1, 3}
    assert core.draining


# --- the record ---


def test_credits_tell_what_is_free_and_who_waits() -> None:
    core = paired(pages=2)
    assert core.credits == {"tokens": 8, "rows": 4, "places": 64, "queue": 0}
    for room in (1, 2):
        core.handle(submitted(room), 0.0)
        core.handle(came(destination(room)), 0.0)
    assert core.credits == {"tokens": 0, "rows": 3, "places": 63, "queue": 1}


# --- layer by layer ---


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


def test_a_broken_forward_is_the_first_cause_whichever_end_is_told_first() -> None:
    core = layered()
    assert causes(core.handle(WriteSkipped(key()), 1.0)) == []
    commands = core.handle(StepFailed((key(),), "no memory"), 1.0)
    assert causes(commands) == [Cause.ENGINE_FAILED]
    assert is_idle(core)
    assert core.doubts.known == {}


def test_a_chunk_that_was_not_sent_fails_the_room_although_it_was_computed() -> None:
    core = layered()
    core.handle(WriteSkipped(key()), 1.0)
    commands = core.handle(done(1, token=0), 1.0)
    assert causes(commands) == [Cause.TRANSFER_FAILED]
    assert is_idle(core)


# --- grammars ---


def test_a_room_whose_grammar_is_compiled_still_lets_others_go_first() -> None:
    core = paired()
    commands = core.handle(submitted(1, sampling=GUIDED), 0.0)
    assert of(commands, Prepare) == [Prepare(key(1), GUIDED.grammar)]  # type: ignore[arg-type]
    assert of(core.handle(came(destination(1)), 0.0), Begin) == []
    core.handle(submitted(2, tokens=3), 0.0)
    commands = core.handle(came(destination(2, tokens=3)), 0.0)
    assert [begin.sequence.key for begin in of(commands, Begin)] == [key(2)]
    commands = core.handle(Prepared(key(1)), 1.0)
    assert [begin.sequence.key for begin in of(commands, Begin)] == [key(1)]


def test_a_grammar_that_is_there_before_the_destination_holds_nothing_back() -> None:
    core = paired()
    core.handle(submitted(1, sampling=GUIDED), 0.0)
    core.handle(Prepared(key(1)), 0.0)
    core.handle(Prepared(key(9)), 0.0)  # of a room that is gone
    assert len(of(core.handle(came(destination(1)), 0.0), Run)) == 1
