"""The decode core: events in, commands out."""

from __future__ import annotations

from daemons.decode.commands import ReadRow, ZeroRow
from daemons.engine.step import Begin, End, Run
from daemons.kv.ledger import Owner
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import FinishReason, LookUp, RouteFailed
from daemons.protocol.handshake import Abort, Destination, RegisterBuffers
from daemons.protocol.status import Status
from daemons.runtime.commands import Connect, Disconnect, Probe, SendHeartbeat
from daemons.runtime.events import ConnectionLost, Probed, Stopping, Tick
from tests.support.cores import (
    GUIDED,
    P_NEXT,
    P,
    answer,
    came,
    causes,
    decode_core,
    destination,
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
    in_transfer,
    paired,
    row_read,
    running,
    with_looks,
)

# --- one room, told once ---


def test_a_room_goes_from_request_to_its_last_token() -> None:
    core = decode_core()
    assert of(core.handle(submitted(), 0.0), LookUp) == [LookUp("p0")]
    commands = core.handle(route(), 0.1)
    assert of(commands, Connect) == [Connect(P, "p.host", 8000)]
    (registration,) = said(commands, RegisterBuffers)
    assert registration.to_epoch == P.epoch
    commands = core.handle(came(answer()), 0.2)
    (where,) = said(commands, Destination)
    assert (where.pages, where.row, where.prompt_tokens) == ((0, 1), 0, 6)
    assert commands.index(ZeroRow(0)) < len(commands) - 1  # before it is offered
    assert core.pages.owner(0) == (Owner.WRITER, key())
    assert told(core.handle(came(progress(Status.TRANSFERRING)), 1.0)) == []
    assert of(core.handle(came(SUCCESS), 2.0), ReadRow) == [ReadRow(key(), 0)]
    commands = core.handle(row_read(first=5, cached=4), 2.1)
    assert [begin.sequence.output for begin in of(commands, Begin)] == [(5,)]
    (output,) = told(commands)
    assert ([t.id for t in output.tokens], output.finish, output.cached_tokens) == ([5], None, 4)
    ((item,),) = (run.items for run in of(commands, Run))
    assert (item.tokens, item.start, item.pages) == ((5,), 6, (0, 1))
    assert core.pages.owner(0) == (Owner.REQUEST, key())
    assert core.rows.free == core.rows.size
    ((item,),) = (run.items for run in of(core.handle(done(1, token=8), 3.0), Run))
    assert (item.tokens, item.start) == ((8,), 7)
    commands = core.handle(done(1, token=9), 4.0)
    (output,) = told(commands)
    assert (output.finish, output.finish_token) == (FinishReason.LENGTH, None)
    assert of(commands, End) == [End(key())]
    assert of(commands, Run) == []
    assert is_idle(core)


# --- prefills ---


def test_a_prefill_that_is_not_found_is_looked_up_again_until_the_deadline() -> None:
    core = decode_core()
    core.handle(submitted(), 0.0)
    missing = Failure(Cause.BOOTSTRAP_UNKNOWN, "prealloc", "p0", "never heard of it")
    assert of(core.handle(RouteFailed("p0", missing), 0.1), LookUp) == []
    assert of(core.handle(Tick(), 0.6), LookUp) == [LookUp("p0")]
    assert causes(core.handle(Tick(), 9.9)) == []
    assert [o.failure for o in told(core.handle(Tick(), 10.0))] == [missing]
    assert is_idle(core)


def test_a_prefill_that_never_answers_is_a_handshake_timeout() -> None:
    core = decode_core()
    core.handle(submitted(), 0.0)
    core.handle(route(), 0.1)
    assert len(said(core.handle(Tick(), 0.6), RegisterBuffers)) == 1
    assert causes(core.handle(Tick(), 10.0)) == [Cause.HANDSHAKE_TIMEOUT]


def test_a_mismatch_is_seen_before_anything_is_registered() -> None:
    core = decode_core()
    core.handle(submitted(), 0.0)
    other = route(fingerprint=core.prefills.buffers.fingerprint.__class__("m2", "fp32", 4, 1, 1, 8))
    commands = core.handle(other, 0.1)
    assert causes(commands) == [Cause.PAIR_MISMATCH]
    assert said(commands, RegisterBuffers) == []


def test_a_dead_prefill_costs_its_rooms_and_what_it_may_have_sent_settles() -> None:
    core = in_transfer()
    commands = with_looks(core, Probed(P, refused=True), 1.0)
    assert causes(commands) == [Cause.PEER_DIED]
    assert of(commands, Disconnect) == [Disconnect(P)]
    assert said(commands, Abort) == []
    assert core.pages.counts()["quarantined"] == 2
    for step in range(8):
        core.handle(Tick(), 1.25 + step / 4)
    assert is_idle(core)


def test_rooms_that_run_do_not_need_their_prefill_any_more() -> None:
    core = running()
    assert causes(core.handle(Probed(P, refused=True), 1.5)) == []
    assert told(core.handle(done(1), 2.0))


def test_a_newer_life_is_the_death_of_the_older_and_takes_the_waiting_rooms() -> None:
    core = in_transfer(rows=1)
    core.handle(submitted(2), 0.0)
    commands = with_looks(core, route(P_NEXT), 1.0)
    assert causes(commands) == [Cause.PEER_DIED]
    assert of(commands, Disconnect) == [Disconnect(P)]
    core.handle(submitted(3), 1.0)
    commands = core.handle(route(P_NEXT), 1.1)
    assert of(commands, Connect) == [Connect(P_NEXT, "p.host", 8000)]


def test_an_older_life_in_the_phone_book_is_not_called() -> None:
    core = paired()
    core.handle(Probed(P, refused=True), 1.0)
    core.handle(submitted(), 1.0)
    assert of(core.handle(route(P), 1.1), Connect) == []
    assert of(core.handle(Tick(), 1.7), LookUp) == [LookUp("p0")]


def test_messages_of_strangers_are_counted_and_change_nothing() -> None:
    core = decode_core()
    assert core.handle(came(SUCCESS), 0.0) == []
    core = in_transfer()
    assert core.handle(came(destination(sender=P)), 0.0) == []
    assert core.counters["messages_from_strangers"] == 1


def test_a_lost_connection_is_looked_into() -> None:
    core = paired()
    assert core.handle(ConnectionLost(P), 3.0) == [Probe(P, "p.host", 8000)]


def test_heartbeats_go_to_every_prefill() -> None:
    core = paired()
    assert of(core.handle(Tick(), 1.0), SendHeartbeat) == [SendHeartbeat(P)]


# --- time ---


def test_the_clients_patience_ends_a_room_in_any_stage() -> None:
    core = paired()
    core.handle(submitted(timeout_s=3.0, most=9), 0.0)
    core.handle(came(SUCCESS), 1.0)
    core.handle(row_read(), 1.0)
    assert causes(core.handle(Tick(), 3.0)) == [Cause.TOTAL_TIMEOUT]
    assert told(core.handle(done(1), 3.1)) == []
    assert is_idle(core)


def test_stopping_fails_what_is_left() -> None:
    core = running()
    core.handle(submitted(2), 1.0)
    commands = core.handle(Stopping(), 2.0)
    assert causes(commands) == [Cause.INSTANCE_STOPPING] * 2
    assert [a.room for a in said(commands, Abort)] == [2]
    assert core.draining


# --- grammars ---


def test_a_room_that_waits_for_its_grammar_still_ends_by_its_deadline() -> None:
    core = paired()
    core.handle(submitted(1, sampling=GUIDED, timeout_s=30.0), 0.0)
    core.handle(came(SUCCESS), 1.0)
    core.handle(row_read(), 1.0)
    assert causes(core.handle(Tick(), 31.0)) == [Cause.TOTAL_TIMEOUT]
