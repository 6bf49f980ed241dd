from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zmq

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.codec import decode_to_front, encode_link
from daemons.protocol.generate import (
    Ask,
    AskFor,
    Cancel,
    Chaos,
    Drain,
    Finish,
    LastWords,
    Output,
    Outputs,
    Sampling,
    Snapshot,
    Stop,
    Submit,
    TokenOut,
)
from daemons.protocol.ids import PeerId, RoomKey
from daemons.runtime import rank_link, reactor
from daemons.runtime.commands import Connect, Disconnect, Probe, SendHeartbeat, Tell
from daemons.runtime.events import (
    Cancelled,
    ConnectionLost,
    Draining,
    Finished,
    MessageCame,
    Probed,
    Stopping,
    Submitted,
    Tick,
)
from daemons.runtime.log import logger
from daemons.runtime.mailbox import Mailbox
from daemons.runtime.rank_link import RankLink
from daemons.runtime.reactor import Clock, Reactor, Wake, refuses

ME, PEER = PeerId("d0", 5), PeerId("p0", 9)
SUBMIT = Submit(7, 1, (1, 2), Sampling(), "p0", 10.0)


@dataclass
class ScriptedCore:
    """Answers an event of a type with commands; notes every event but ticks."""

    script: dict[type, list[object]] = field(default_factory=dict)
    events: list[object] = field(default_factory=list)
    busy: bool = False

    def handle(self, event: object, now: float) -> list[object]:
        if not isinstance(event, Tick):
            self.events.append(event)
        return self.script.get(type(event), [])


@dataclass
class PlainShell:
    """Answers one own command with one event."""

    done: list[object] = field(default_factory=list)

    def execute(self, command: object) -> object | None:
        self.done.append(command)
        return "looked" if command == "look" else None

    def observe(self, event: object) -> None:
        pass

    def answer(self, ask: Ask | Chaos, now: float) -> dict[str, object]:
        return {"asked": ask.what.value if isinstance(ask, Ask) else "chaos"}


@dataclass
class Bench:
    """A reactor between a front's socket and a peer's mailbox."""

    front: zmq.Socket[bytes]
    peer: Mailbox
    wake: Wake
    loop: Reactor
    stdin: int  # the end that the front holds
    link: RankLink

    def say(self, *messages: object) -> None:
        for message in messages:
            self.front.send(encode_link(message))  # type: ignore[arg-type]

    def heard(self) -> object:
        assert self.front.poll(5000)
        return decode_to_front(self.front.recv())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    front = context.socket(zmq.PAIR)
    front.bind(f"ipc://{tmp_path}/link")
    reader, writer = os.pipe()
    monkeypatch.setattr(reactor, "STDIN", reader)
    monkeypatch.setattr(rank_link, "STDIN", reader)
    wake = Wake()
    link = RankLink(context, f"ipc://{tmp_path}/link")
    loop = Reactor(ME, Mailbox(context, ME, "127.0.0.1"), link, wake, Clock(), logger())
    peer = Mailbox(context, PEER, "127.0.0.1")
    yield Bench(front, peer, wake, loop, writer, link)
    context.destroy(linger=0)
    os.close(reader)


def test_what_the_front_says_comes_to_the_core_in_order_and_stop_ends_the_loop(
    bench: Bench,
) -> None:
    core, shell = ScriptedCore(), PlainShell()
    failure = Failure(Cause.CLIENT_CANCELLED, "running")
    bench.say(SUBMIT, Cancel(7, 1, failure), Finish(7, 1), Drain(True), Stop())
    assert bench.loop.run(core, shell) == 0
    key = RoomKey(7, 1)
    assert core.events == [
        Submitted(SUBMIT),
        Cancelled(key, failure),
        Finished(key),
        Draining(True),
        Stopping(),
    ]


def test_a_question_is_answered_without_the_core(bench: Bench) -> None:
    core = ScriptedCore()
    bench.say(Ask(3, AskFor.ROOMS), Stop())
    bench.loop.run(core, PlainShell())
    assert bench.heard() == Snapshot(3, {"asked": "rooms"})
    assert core.events == [Stopping()]


def test_commands_are_carried_out_and_the_shells_answers_come_back_as_events(
    bench: Bench,
) -> None:
    core, shell = ScriptedCore({Submitted: ["look", Tell(())]}), PlainShell()
    bench.say(SUBMIT, Stop())
    bench.loop.run(core, shell)
    assert core.events == [Submitted(SUBMIT), "looked", Stopping()]
    assert shell.done == ["look"]
    assert bench.heard() == Outputs(())


def test_an_event_of_another_thread_wakes_the_loop(bench: Bench) -> None:
    core = ScriptedCore()
    bench.wake.post("done")
    bench.say(Stop())
    bench.loop.run(core, PlainShell())
    assert "done" in core.events


def test_a_heartbeat_reaches_the_peer_with_our_clock(bench: Bench) -> None:
    connect = Connect(PEER, "127.0.0.1", bench.peer.port)
    core = ScriptedCore({Submitted: [connect, SendHeartbeat(PEER)]})
    bench.say(SUBMIT, Stop())
    bench.loop.run(core, PlainShell())
    assert bench.peer.inbox.poll(5000)
    (came,) = bench.peer.receive()
    assert isinstance(came, MessageCame)
    assert came.message.sender == ME


def test_a_peer_that_closes_is_told_and_a_knock_at_its_port_proves_its_end(bench: Bench) -> None:
    connect = Connect(PEER, "127.0.0.1", bench.peer.port)
    probe = Probe(PEER, "127.0.0.1", bench.peer.port)

    class Closing(ScriptedCore):
        def handle(self, event: object, now: float) -> list[object]:
            super().handle(event, now)
            match event:
                case Submitted():
                    bench.wake.post("close")
                    return [connect, SendHeartbeat(PEER)]
                case "close":
                    assert bench.peer.inbox.poll(5000)
                    bench.peer.close()
                case ConnectionLost():
                    return [probe]
                case Probed():
                    bench.say(Stop())
                    return [Disconnect(PEER)]
            return []

    core = Closing()
    bench.say(SUBMIT)
    assert bench.loop.run(core, PlainShell()) == 0
    assert ConnectionLost(PEER) in core.events
    assert Probed(PEER, refused=True) in core.events


def test_the_end_of_standard_input_ends_the_loop_with_1(bench: Bench) -> None:
    os.close(bench.stdin)
    assert bench.loop.run(ScriptedCore(), PlainShell()) == 1


def test_the_clock_reads_as_unix_time_and_never_steps_back() -> None:
    clock = Clock()
    times = [clock() for _ in range(100)]
    assert times == sorted(times)
    assert times[0] > 1.7e9


def test_a_port_where_somebody_listens_does_not_refuse() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not refuses("127.0.0.1", port)
    assert refuses("127.0.0.1", port)


def test_what_has_come_is_heard_before_time_is_looked_at(bench: Bench) -> None:
    order: list[type] = []

    class Noting(ScriptedCore):
        def handle(self, event: object, now: float) -> list[object]:
            order.append(type(event))
            return []

    bench.say(SUBMIT, Stop())
    assert bench.link.socket.poll(5000)  # as in a process that was frozen while it came
    assert bench.loop.run(Noting(), PlainShell()) == 0
    assert order.index(Submitted) < order.index(Tick)


def test_an_output_that_cannot_be_sent_costs_its_own_room_only(bench: Bench) -> None:
    good = Output(8, 1, (TokenOut(3),))
    bad = Output(7, 1, (object(),))  # type: ignore[arg-type]
    core = ScriptedCore({Submitted: [Tell((bad, good))]})
    bench.say(SUBMIT, Stop())
    assert bench.loop.run(core, PlainShell()) == 0
    failed, told = bench.heard(), bench.heard()
    assert isinstance(failed, Outputs)
    failure = failed.items[0].failure
    assert failure is not None
    assert (failed.items[0].room, failure.cause, failure.stage) == (7, Cause.INTERNAL, "publish")
    assert told == Outputs((good,))
    assert core.events == [Submitted(SUBMIT), Cancelled(RoomKey(7, 1), failure), Stopping()]


def test_a_core_that_breaks_ends_the_loop_and_the_front_hears_why(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(ScriptedCore):
        def handle(self, event: object, now: float) -> list[object]:
            if isinstance(event, Submitted):
                raise KeyError("no such room")
            return []

    monkeypatch.setattr(reactor, "LAST_WORDS_S", 0.01)
    bench.say(SUBMIT)
    assert bench.loop.run(Broken(), PlainShell()) == 1
    assert bench.heard() == LastWords("KeyError: 'no such room'")


def test_faults_are_ordered_through_the_shell(bench: Bench) -> None:
    bench.say(Chaos(4), Stop())
    bench.loop.run(ScriptedCore(), PlainShell())
    assert bench.heard() == Snapshot(4, {"asked": "chaos"})
