"""One life of a daemon: a core, its memory, and a shell that does what the core commands.

A dead process hears nothing and keeps nothing. A frozen one hears everything when it thaws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from daemons.decode.commands import ReadRow, VerifySums, ZeroRow
from daemons.decode.events import RowRead, SumsVerified
from daemons.decode.scheduler import Scheduler as DecodeCore
from daemons.engine.step import Begin, End, Keep, Prepare, Restore, Run
from daemons.kv.ledger import Owner
from daemons.prefill.commands import CallOffWrites, LearnBuffers, WriteKV
from daemons.prefill.scheduler import Scheduler as PrefillCore
from daemons.protocol.generate import LookUp
from daemons.protocol.handshake import Destination, Heartbeat
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import unpack
from daemons.runtime.commands import (
    Connect,
    Disconnect,
    Log,
    Probe,
    Send,
    SendHeartbeat,
    Tell,
)
from daemons.runtime.events import Finished, Tick
from tests.sim.engine import Engine
from tests.sim.invariants import Violation, check_core
from tests.sim.lanes import Lanes
from tests.sim.memory import EMPTY_ROW, MarkSums, Memory
from tests.sim.network import Address

if TYPE_CHECKING:
    from tests.sim.world import World

Core = PrefillCore | DecodeCore


@dataclass(slots=True, eq=False)
class Process:
    """One life of one instance."""

    world: World
    me: PeerId
    address: Address
    core: Core
    memory: Memory
    skew_s: float  # our clock minus the world's
    alive: bool = True
    frozen: bool = False
    thawed_s: float = -1e9  # when it was last frozen until
    buried: set[PeerId] = field(default_factory=set)
    ways: dict[PeerId, Address] = field(default_factory=dict)
    spoilt: set[RoomKey] = field(default_factory=set)  # a page of theirs landed as another
    said_over: dict[tuple[int, int], str] = field(default_factory=dict)  # rooms, with the fence
    offered: set[tuple[int, int]] = field(default_factory=set)  # rooms with a destination
    engine: Engine = field(init=False)
    lanes: Lanes = field(init=False)
    _waiting: list[object] = field(default_factory=list)
    _on_thaw: list[Callable[[], None]] = field(default_factory=list)
    _frozen_s: float = 0.0
    _frozen_at_s: float = 0.0

    def __post_init__(self) -> None:
        self.engine = Engine(self)
        self.lanes = Lanes(self)

    @property
    def instance(self) -> str:
        """The instance's name."""
        return self.me.instance

    @property
    def awake_s(self) -> float:
        """How long this process has run, without the time that it was frozen."""
        now = self._frozen_at_s if self.frozen else self.world.now
        return now - self._frozen_s

    def deliver(self, event: object) -> None:
        """Give the core an event and do what it commands."""
        if not self.alive:
            return
        if self.frozen:
            self._waiting.append(event)
            return
        world = self.world
        world.note(self, event)
        commands = self.core.handle(event, world.now + self.skew_s)  # type: ignore[arg-type]
        for command in commands:
            world.note(self, command)
            self._do(command)
        for command in commands:  # by now all outputs are told
            if isinstance(command, Log) and command.event == "room.closed":
                world.front.closed(self, dict(command.facts))
        if isinstance(event, Finished):
            world.front.finish_handled(self, event.key)
        check_core(self)

    def tick(self) -> None:
        """Let time pass for the core, for as long as it lives."""
        if self.alive:
            if not self.frozen:
                self.deliver(Tick())
            self.world.after(self.world.tick_s(), self.tick)

    def freeze(self) -> None:
        """Stop as by SIGSTOP."""
        self.frozen, self._frozen_at_s = True, self.world.now

    def thaw(self) -> None:
        """Go on, with all that has come meanwhile."""
        if not self.frozen:
            return  # killed, or thawed with the end of all faults
        self.thawed_s = self.world.now
        self._frozen_s += self.world.now - self._frozen_at_s
        self.frozen = False
        waiting, self._waiting = self._waiting, []
        if self.world.rng.random() < 0.5:  # the loop may look at its clock first
            waiting.insert(0, Tick())
        for event in waiting:
            self.deliver(event)
        callbacks, self._on_thaw = self._on_thaw, []
        for callback in callbacks:
            callback()

    def when_thawed(self, do: Callable[[], None]) -> bool:
        """Do something after the thaw; False when the process is not frozen."""
        if self.frozen:
            self._on_thaw.append(do)
        return self.frozen

    def _do(self, command: object) -> None:
        match command:
            case Send():
                self._send(command)
            case SendHeartbeat(peer):
                beat = Heartbeat(self.me, peer.epoch, self.world.now)
                self.world.network.send(self, self._way(peer), beat)
            case Tell(outputs):
                for output in outputs:
                    self.world.front.output(self, output)
            case Log():
                pass
            case Prepare() | Begin() | Run() | End() | Keep() | Restore():
                self.engine.do(command)
            case WriteKV():
                self.lanes.queue(command)
            case CallOffWrites(key):
                self.lanes.call_off(key)
            case LearnBuffers(peer, _):
                self.lanes.known.add(peer)
            case Connect(peer, host, port):
                self._check_new(peer)
                self.ways[peer] = (host, port)
            case Disconnect(peer):
                del self.ways[peer]
                if peer in self.core.peers.liveness._dead:  # not merely forgotten
                    self.buried.add(peer)
                self.lanes.forget(peer)
            case Probe(peer, host, port):
                self.world.network.probe(self, peer, (host, port))
            case LookUp(instance):
                self.world.book.look_up(self, instance)
            case ZeroRow(row):
                if self.core.rows.owner(row)[0] is not Owner.WRITER:
                    raise Violation(f"{self.me} zeroes row {row}, which is not offered")
                self.memory.rows[row] = EMPTY_ROW
            case ReadRow(key, row):
                state, content = unpack(self.memory.rows[row], key)
                self.world.after(0.001, self.deliver, RowRead(key, state, content))
            case VerifySums():
                self.world.after(self.world.rng.random() * 0.01, self._verify, command)
            case _:
                raise Violation(f"{self.me} commands {command}")

    def _verify(self, command: VerifySums) -> None:
        """Compare what has landed with what was summed; both are right about it."""
        key, core = command.key, self.core
        wrong = MarkSums(self.memory).difference(command.offered, command.sums, command.tokens)
        assert isinstance(core, DecodeCore)
        request = core.stages.transfer.rooms.get(key)
        if self.alive and request is not None and request.landed is not None:
            if bool(wrong) != (key in self.spoilt):
                raise Violation(f"{self.me} says of {key}: {wrong!r}, spoilt are {self.spoilt}")
            self.world.seen["rooms whose sums were compared"] += 1
            self.world.seen["spoilt rooms that were refused"] += bool(wrong)
        self.deliver(SumsVerified(key, wrong))

    def _send(self, command: Send) -> None:
        message = command.message
        if isinstance(message, Destination):
            again = (message.room, message.attempt) in self.offered
            if not again and self.memory.rows[message.row] != EMPTY_ROW:
                raise Violation(f"{self.me} offers row {message.row}, which is not empty")
            self.offered.add((message.room, message.attempt))
        self.world.front.said(self, message)
        self.world.network.send(self, self._way(command.peer), message)

    def _check_new(self, peer: PeerId) -> None:
        """Lives that are over, or not the newest, are left alone."""
        for known in (*self.ways, *self.buried):
            if known.instance == peer.instance and known.epoch >= peer.epoch:
                raise Violation(f"{self.me} connects to {peer}, but knew {known}")

    def _way(self, peer: PeerId) -> Address:
        if peer not in self.ways:
            raise Violation(f"{self.me} talks to {peer}, to which it has no way")
        return self.ways[peer]
