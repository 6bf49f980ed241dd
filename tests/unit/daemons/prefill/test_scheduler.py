"""The prefill core: events in, commands out."""

from __future__ import annotations

import pytest

from daemons.engine.step import Begin, End, Run
from daemons.kv.ledger import Owner
from daemons.prefill.commands import LearnBuffers, WriteKV
from daemons.prefill.events import WriteDone, WriteFailed, WriteSkipped
from daemons.prefill.scheduler import EPOCH_AHEAD_S, PEERS_LIMIT
from daemons.protocol.causes import Cause
from daemons.protocol.generate import FinishReason
from daemons.protocol.handshake import Fence, Heartbeat, Progress, RegistrationAnswer
from daemons.protocol.ids import PeerId
from daemons.protocol.metadata import RowState, unpack
from daemons.protocol.status import Status
from daemons.runtime.commands import Connect, Disconnect, Probe, SendHeartbeat
from daemons.runtime.events import ConnectionLost, Finished, Probed, Stopping, Tick
from tests.support.cores import (
    D_NEXT,
    FINGERPRINT,
    D,
    P,
    abort,
    buffers,
    came,
    causes,
    destination,
    done,
    is_idle,
    key,
    of,
    prefill_core,
    said,
    submitted,
    told,
)
from tests.support.prefill_scenes import heard, in_flight, in_forward, paired

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


# --- refusals at the door ---


def test_a_stop_string_changes_nothing_here() -> None:
    core = in_forward()
    assert core.handle(Finished(key()), 1.0) == []
    assert core.busy


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
