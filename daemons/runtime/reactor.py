"""The loop of a rank: waits, hands events to the core, carries its commands out.

One thread owns the core. It sleeps until a message, a lane, the front or a timer wakes it: with
rooms here it ticks a few times a second, without any only for heartbeats.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import zmq

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import (
    Ask,
    Cancel,
    Chaos,
    Drain,
    Finish,
    LastWords,
    LookUp,
    Output,
    Outputs,
    RouteFailed,
    RouteFound,
    Snapshot,
    Stop,
    Submit,
    ToRank,
)
from daemons.protocol.handshake import Heartbeat
from daemons.protocol.ids import PeerId, RoomKey, room_hex
from daemons.runtime.commands import (
    Connect,
    Disconnect,
    Log,
    Probe,
    Send,
    SendHeartbeat,
    Tell,
)
from daemons.runtime.events import (
    Cancelled,
    Draining,
    Finished,
    Probed,
    Stopping,
    Submitted,
    Tick,
)
from daemons.runtime.lanes import Job, Lane
from daemons.runtime.log import Logger
from daemons.runtime.mailbox import Mailbox
from daemons.runtime.rank_link import STDIN, RankLink

BUSY_TICK_S = 0.1
IDLE_TICK_S = 0.5
PROBE_S = 1.0
LAST_WORDS_S = 0.5


class Core(Protocol):
    """A scheduler: the only thing the loop knows of it."""

    @property
    def busy(self) -> bool:
        """Whether rooms are here, so that timers matter."""
        ...

    def handle(self, event: Any, now: float) -> Sequence[object]:
        """Take an event, return what is to be done."""
        ...


class Shell(Protocol):
    """What only one kind of daemon does."""

    def execute(self, command: object) -> object | None:
        """Carry out a command of the daemon's own; may return an event at once."""
        ...

    def observe(self, event: object) -> None:
        """See each event before the core does."""
        ...

    def answer(self, ask: Ask | Chaos, now: float) -> dict[str, object]:
        """Return the body of a snapshot."""
        ...


class Clock:
    """Seconds that never step back, counted so that they read as Unix time at the start."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Return the time now."""
        return time.monotonic() + self._offset_s


class Wake:
    """Lets other threads hand events to the loop."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._events: deque[object] = deque()

    def post(self, event: object) -> None:
        """Hand over an event; any thread."""
        self._events.append(event)
        os.eventfd_write(self.fd, 1)

    def take(self) -> list[object]:
        """Return what was handed over; the loop's thread."""
        os.eventfd_read(self.fd)
        return [self._events.popleft() for _ in range(len(self._events))]


class Reactor:
    """Joins a core with its mailbox, its front and its lanes."""

    def __init__(
        self, me: PeerId, mailbox: Mailbox, link: RankLink, wake: Wake, clock: Clock, log: Logger
    ) -> None:
        self._me = me
        self._mailbox = mailbox
        self._link = link
        self._wake = wake
        self._clock = clock
        self._log = log
        self._prober = Lane("probe", wake.post)
        self._heard_at: dict[PeerId, float] = {}  # the peer's clock in its last heartbeat
        self._stopping = False
        self.lag_max_s = 0.0  # the longest by which a tick came late: how long the loop was busy
        self._poller = zmq.Poller()
        self._carry_out: dict[type, Callable[..., object]] = {
            Connect: self._connect,
            Disconnect: self._disconnect,
            Send: lambda c: self._mailbox.send(c.peer, c.message),
            SendHeartbeat: self._heartbeat,
            Probe: self._probe,
            Log: lambda c: self._log.info(c.event, **dict(c.facts)),
            LookUp: self._link.send,
        }

    def run(self, core: Core, shell: Shell) -> int:
        """Run until the front says stop (0), is gone (1), or a defect of ours is found (1)."""
        try:
            return self._run(core, shell)
        except Exception as error:  # noqa: BLE001 - the state may be wrong: say why, and end
            self._log.exception("rank.broke")
            self._link.send(LastWords(f"{type(error).__name__}: {error}"))
            self._link.wait_for_end_of_front(LAST_WORDS_S)  # clients hear it before peers miss us
            self._mailbox.flush(LAST_WORDS_S)
            self._link.close()
            return 1

    def _run(self, core: Core, shell: Shell) -> int:
        for waited_for in (*self._mailbox.sockets(), self._link.socket, self._wake.fd, STDIN):
            self._poller.register(waited_for, zmq.POLLIN)
        next_tick_s = 0.0
        while not self._stopping:
            was_busy = core.busy
            if self._front_gone(core, shell, max(0.0, next_tick_s - self._clock())):
                return 1
            if core.busy and not was_busy:
                next_tick_s = min(next_tick_s, self._clock() + BUSY_TICK_S)
            # After what came: a thawed process must hear its peers before it misses them.
            if (now := self._clock()) >= next_tick_s:
                if next_tick_s:
                    self.lag_max_s = max(self.lag_max_s, now - next_tick_s)
                self._handle(core, shell, Tick())
                next_tick_s = self._clock() + (BUSY_TICK_S if core.busy else IDLE_TICK_S)
        self._handle(core, shell, Stopping())
        self._mailbox.flush(LAST_WORDS_S)
        self._link.close()
        return 0

    def _front_gone(self, core: Core, shell: Shell, timeout_s: float) -> bool:
        for source, _ in self._poller.poll(math.ceil(timeout_s * 1000)):
            if source == self._wake.fd:
                events = self._wake.take()
            elif source == STDIN:
                if self._link.front_is_gone():
                    self._log.error("front.gone")
                    return True
                continue
            elif source is self._mailbox.inbox:
                events = list(self._mailbox.receive())
                for event in events:
                    self._note_clock(event)
            elif source is self._link.socket:
                for message in self._link.receive():
                    self._front_said(core, shell, message)
                continue
            else:
                events = list(self._mailbox.lost(source))
            for event in events:
                self._handle(core, shell, event)
        return False

    def _handle(self, core: Core, shell: Shell, event: object) -> None:
        events = deque([event])
        while events:
            next_event = events.popleft()
            shell.observe(next_event)
            for command in core.handle(next_event, self._clock()):
                if isinstance(command, Tell):
                    events.extend(self._told(command))
                    continue
                carry_out = self._carry_out.get(type(command))
                if carry_out is not None:
                    carry_out(command)
                if carry_out is None or isinstance(command, Disconnect):
                    answer = shell.execute(command)
                    if answer is not None:
                        events.append(answer)

    def _front_said(self, core: Core, shell: Shell, message: ToRank) -> None:
        match message:
            case Submit():
                self._handle(core, shell, Submitted(message))
            case Cancel():
                key = RoomKey(message.room, message.attempt)
                self._handle(core, shell, Cancelled(key, message.failure))
            case Finish():
                self._handle(core, shell, Finished(RoomKey(message.room, message.attempt)))
            case Ask() | Chaos():
                body = shell.answer(message, self._clock())
                self._link.send(Snapshot(message.question, body))
            case Drain():
                self._handle(core, shell, Draining(message.on))
            case Stop():
                self._stopping = True
            case RouteFound() | RouteFailed():
                self._handle(core, shell, message)

    def _told(self, command: Tell) -> list[Cancelled]:
        """Give outputs to the front; one that cannot be sent costs its own room only."""
        try:
            self._link.send(Outputs(command.outputs))
        except Exception:  # noqa: BLE001 - found again below, one by one
            broken = [self._told_alone(output) for output in command.outputs]
            return [event for event in broken if event is not None]
        return []

    def _told_alone(self, output: Output) -> Cancelled | None:
        try:
            self._link.send(Outputs((output,)))
        except Exception as error:  # noqa: BLE001 - the room's end is told instead
            detail = f"{type(error).__name__}: {error}"
            failure = Failure(Cause.INTERNAL, "publish", self._me.instance, detail)
            self._log.error("output.broken", room=room_hex(output.room), text=detail)
            self._link.send(Outputs((Output(output.room, output.attempt, failure=failure),)))
            return Cancelled(RoomKey(output.room, output.attempt), failure)
        return None

    def _connect(self, command: Connect) -> None:
        monitor = self._mailbox.connect(command.peer, command.host, command.port)
        if monitor is not None:
            self._poller.register(monitor, zmq.POLLIN)

    def _disconnect(self, command: Disconnect) -> None:
        self._heard_at.pop(command.peer, None)
        monitor = self._mailbox.disconnect(command.peer)
        if monitor is not None:
            self._poller.unregister(monitor)

    def _heartbeat(self, command: SendHeartbeat) -> None:
        peer = command.peer
        echo = self._heard_at.get(peer, 0.0)
        self._mailbox.send(peer, Heartbeat(self._me, peer.epoch, self._clock(), echo))

    def _note_clock(self, event: object) -> None:
        message = getattr(event, "message", None)
        if isinstance(message, Heartbeat):
            self._heard_at[message.sender] = message.sent_at_s

    def _probe(self, command: Probe) -> None:
        def knock() -> Probed:
            return Probed(command.peer, refused=refuses(command.host, command.port))

        self._prober.submit(Job(knock, lambda _: Probed(command.peer, refused=False)))


def refuses(host: str, port: int) -> bool:
    """Say whether the host answers that nobody listens at ``port``: that process is gone."""
    try:
        with socket.create_connection((host, port), timeout=PROBE_S):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
