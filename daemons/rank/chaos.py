"""Faults of one rank: wrappers around core, shell, backend and engine, put there at its start.

They exist only where the cluster file allows faults; nothing else in a rank knows of them. Each
keeps the promises of what it wraps: a write that is made to fail has really stopped, memory that
is taken away is on the books.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from daemons.cluster.worker import Timers
from daemons.engine.engine import Engine
from daemons.engine.step import Item, Kept, Result, StepDone
from daemons.engine.step import Sequence as Room
from daemons.kv.ledger import Ledger, Owner
from daemons.kv.window_pool import WindowPool
from daemons.protocol.chaos import LASTING, Fault, FaultOrder, flaw
from daemons.protocol.generate import Ask, AskFor, Chaos, Grammar, TokenOut
from daemons.protocol.handshake import Message
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import ROW_BYTES
from daemons.protocol.topology import Role
from daemons.rank.forward_lane import Steps
from daemons.rank.places import Places, places_of
from daemons.runtime.commands import Send, SendHeartbeat, Tell
from daemons.runtime.events import Submitted
from daemons.runtime.faults import HEARTBEAT, Faults
from daemons.runtime.reactor import Core, Shell
from daemons.transfer.backend import Copies, Copy, Region, TransferBackend, WriteCut

JUNK_BYTES = 16  # of a page that is spoilt
REORDER_S = 1.0  # a message that nobody overtakes leaves after so long
SCALED = ("handshake_s", "queue_s", "destination_s", "progress_s", "peer_timeout_s")
NOBODY = RoomKey(0, 0)
TAKEN = RoomKey(0, 1)  # holds the memory that was taken away; no room is 0

Retract = Callable[[RoomKey], object]


class Faulty(Protocol):
    """What both cores have in common for faults."""

    pages: Ledger
    rows: Ledger
    config: Any  # PrefillConfig or DecodeConfig


@dataclass(frozen=True, slots=True)
class Mangled:
    """Command: send a message with one bit turned."""

    peer: PeerId
    message: Message


class SendsBytes(Protocol):
    """The part of a mailbox that a mangled message needs."""

    def frame(self, peer: PeerId, message: Message) -> bytes:
        """Return the bytes by which a message goes to a peer."""
        ...

    def send_bytes(self, peer: PeerId, raw: bytes) -> bool:
        """Send bytes as they are."""
        ...


class ChaosEngine:
    """An engine in which faults strike; the forward lane's thread."""

    def __init__(self, engine: Engine, role: Role, faults: Faults) -> None:
        self._engine = engine
        self._role = role
        self._faults = faults

    def prepare(self, grammar: Grammar, told: Callable[[], None]) -> None:
        """Have a grammar compiled."""
        self._engine.prepare(grammar, told)

    def begin(self, sequence: Room) -> None:
        """Begin a room, or raise."""
        if self._role is Role.DECODE:
            self._faults.strike(Fault.LANE_RAISE, room=sequence.key.room)
        self._engine.begin(sequence)

    def end(self, key: RoomKey) -> None:
        """Forget a room."""
        self._engine.end(key)

    def keep(self, key: RoomKey, pages: Sequence[int]) -> None:
        """Copy a room's pages into host memory."""
        self._engine.keep(key, pages)

    def restore(self, key: RoomKey, pages: Sequence[int]) -> None:
        """Copy what is kept of a room into as many pages."""
        self._engine.restore(key, pages)

    def forward(self, items: Sequence[Item]) -> list[Result]:
        """Run a batch; late, not at all, or with a room's result replaced."""
        for item in items:
            if (order := self._faults.take(Fault.ENGINE_DELAY, room=item.key.room)) is not None:
                time.sleep(order.seconds)
            self._faults.strike(Fault.ENGINE_RAISE, room=item.key.room)
        return [self._changed(result) for result in self._engine.forward(items)]

    def _changed(self, result: Result) -> Result:
        room = result.key.room
        if (order := self._faults.take(Fault.ENGINE_REJECT, room=room)) is not None:
            return Result(result.key, error=f"chaos: {order}")
        ends = self._engine.eos_token_ids
        if result.token and ends and self._faults.take(Fault.ENGINE_EOS, room=room):
            return Result(result.key, TokenOut(ends[0]), result.prompt_logprobs)
        return result


class ChaosBackend:
    """A backend in which writes are late, stand still, break or spoil; it knows rooms by pages."""

    def __init__(self, backend: TransferBackend, engine: Engine, faults: Faults) -> None:
        self._backend = backend
        self._faults = faults
        self._pool, self._pool_bytes = engine.kv_memory()
        self.places: Places | None = None  # of the core's pages, once there is one
        self.rows: Ledger | None = None
        self._rows_memory: Region | None = None
        self._junk = ctypes.create_string_buffer(secrets.token_bytes(JUNK_BYTES), JUNK_BYTES)
        self._last: dict[str, RoomKey] = {}  # whose pages went to a peer last

    @property
    def session(self) -> str:
        """As the wrapped one."""
        return self._backend.session

    @property
    def transport(self) -> str:
        """As the wrapped one."""
        return self._backend.transport

    def transport_to(self, peer: str) -> str:
        """As the wrapped one."""
        return self._backend.transport_to(peer)

    def register(self, regions: Sequence[Region]) -> None:
        """As the wrapped one; what is not the pool is the metadata rows."""
        self._rows_memory = next((r for r in regions if r.address != self._pool), None)
        self._backend.register([*regions, Region(ctypes.addressof(self._junk), JUNK_BYTES)])

    def write(self, peer: str, copies: Copies) -> None:
        """Write, after what the faults do to it."""
        room = self._room(peer, copies)
        faults = self._faults
        faults.strike(Fault.LANE_RAISE, room=room)
        if (order := faults.take(Fault.WRITE_DELAY, room=room)) is not None:
            time.sleep(order.seconds)
        if (order := faults.take(Fault.WRITE_FREEZE, room=room)) is not None:
            faults.hold(order)
        if (order := faults.take(Fault.WRITE_FAIL, room=room)) is not None:
            if half := copies[: len(copies) // 2]:
                self._backend.write(peer, half)
            raise WriteCut(f"chaos: {order}")
        self._backend.write(peer, copies)
        page = next((copy for copy in copies if self._is_of_the_pool(copy)), None)
        if page is not None and faults.take(Fault.WRITE_CORRUPT, room=room) is not None:
            size = min(JUNK_BYTES, page.bytes)  # our own page stays right: others read it
            spoilt = Copy(ctypes.addressof(self._junk), page.target, size)
            self._backend.write(peer, [spoilt])

    def close(self) -> None:
        """As the wrapped one; nothing is held any more."""
        self._faults.clear()
        self._backend.close()

    def _is_of_the_pool(self, copy: Copy) -> bool:
        return 0 <= copy.source - self._pool < self._pool_bytes

    def _room(self, peer: str, copies: Copies) -> int:
        """Return whose pages these are, or whose row; of pages that several read the newest's."""
        if self.rows is not None and self._rows_memory is not None and len(copies) == 1:
            offset = next(iter(copies)).source - self._rows_memory.address
            if 0 <= offset < self._rows_memory.bytes:
                return (self.rows.owner(offset // ROW_BYTES)[1] or NOBODY).room
        if self.places is not None and any(map(self._is_of_the_pool, copies)):
            rooms = self.places.rooms(copy.source for copy in copies)
            self._last[peer] = next(iter(rooms), NOBODY)
        return self._last.get(peer, NOBODY).room


class ChaosCore:
    """A core whose messages get lost, come twice, late or broken; the reactor's thread."""

    def __init__(self, core: Core, faults: Faults, retract: Retract | None = None) -> None:
        """``retract`` makes the event by which this core takes a room out of its batch."""
        self._core = core
        self._faults = faults
        self.retract = retract
        self._late: dict[PeerId, tuple[float, Send]] = {}
        self.scale = 1.0  # of every deadline
        self._leaving: set[RoomKey] = set()  # told to leave the batch, not out of it yet

    @property
    def busy(self) -> bool:
        """As the wrapped one, and while something is late."""
        return self._core.busy or bool(self._late)

    def handle(self, event: Any, now: float) -> Sequence[object]:
        """Hand the event to the core, and change what it wants done."""
        if isinstance(event, Submitted):
            self._faults.strike(Fault.SCHEDULER_RAISE, room=event.submit.room)
            submit = event.submit
            scaled = msgspec.structs.replace(submit, timeout_s=submit.timeout_s * self.scale)
            event = Submitted(scaled)
        commands: list[object] = []
        for one in (*self._retractions(event), event):
            for command in self._core.handle(one, now):
                commands += self._changed(command, now)
        commands += self._overdue(now)
        return commands

    def _retractions(self, event: object) -> list[object]:
        """Return what goes before a step's results: rooms of it that shall leave the batch.

        One that was told to leave, and still has a step under way, is not told again.
        """
        if isinstance(event, Kept):
            self._leaving.discard(event.key)
        if self.retract is None or not isinstance(event, StepDone):
            return []
        keys = [result.key for result in event.results if result.key not in self._leaving]
        struck = [key for key in keys if self._faults.take(Fault.ROOM_RETRACT, room=key.room)]
        self._leaving.update(struck)
        return [self.retract(key) for key in struck]

    def _changed(self, command: object, now: float) -> list[object]:
        match command:
            case Send(peer=peer, message=message):
                return self._sent(peer, message, command, now)
            case SendHeartbeat():
                lost = self._faults.take(Fault.MESSAGE_DROP, message=HEARTBEAT)
                return [] if lost else [command]
            case Tell(outputs=outputs):
                return [Tell(tuple(map(self._spoilt, outputs)))]
        return [command]

    def _sent(self, peer: PeerId, message: Message, command: Send, now: float) -> list[object]:
        kind, room = type(message).__name__, getattr(message, "room", 0)

        def strikes(fault: Fault) -> bool:
            return self._faults.take(fault, room=room, message=kind) is not None

        if strikes(Fault.MESSAGE_DROP):
            return []
        if strikes(Fault.MESSAGE_CORRUPT):
            return [Mangled(peer, message)]
        if peer not in self._late and strikes(Fault.MESSAGE_REORDER):
            self._late[peer] = now, command
            return []
        twice = [command] * (2 if strikes(Fault.MESSAGE_DUPLICATE) else 1)
        late = self._late.pop(peer, None)
        return [*twice, late[1]] if late else list(twice)

    def _overdue(self, now: float) -> list[object]:
        due = [peer for peer, (since_s, _) in self._late.items() if now - since_s >= REORDER_S]
        return [self._late.pop(peer)[1] for peer in due]

    def _spoilt(self, output: Any) -> Any:
        """Return an output; one that is struck cannot become bytes."""
        if output.failure is None and self._faults.take(Fault.PUBLISH_RAISE, room=output.room):
            return msgspec.structs.replace(output, tokens=(object(),))
        return output


class ChaosShell:
    """A shell that takes orders for faults, and says in its status what is armed."""

    def __init__(
        self, shell: Shell, core: Faulty, wrapped: ChaosCore, mailbox: SendsBytes, faults: Faults
    ) -> None:
        self._shell = shell
        self._core = core
        self._wrapped = wrapped
        self._mailbox = mailbox
        self._faults = faults
        self._usual: Timers = core.config.timers
        self._lasting: list[FaultOrder] = []

    def execute(self, command: object) -> object | None:
        """Carry out a command."""
        if isinstance(command, Mangled):
            raw = bytearray(self._mailbox.frame(command.peer, command.message))
            raw[len(raw) // 2] ^= 0x10
            self._mailbox.send_bytes(command.peer, bytes(raw))
            return None
        return self._shell.execute(command)

    def observe(self, event: object) -> None:
        """See each event before the core does."""
        self._shell.observe(event)

    def answer(self, ask: Ask | Chaos, now: float) -> dict[str, object]:
        """Return the body of a snapshot; obey an order first."""
        if isinstance(ask, Chaos):
            refused = self._obey(ask)
            return {"armed": self._words(), "refused": refused}
        body = self._shell.answer(ask, now)
        if ask.what is AskFor.STATUS and isinstance(status := body["status"], dict):
            fired = {f"chaos:{name}": float(count) for name, count in self._faults.fired.items()}
            status["counters"] = {**status["counters"], **fired}
            status["chaos"] = self._words()
        return body

    def _words(self) -> list[str]:
        return [*self._faults.words(), *map(str, self._lasting)]

    def _obey(self, chaos: Chaos) -> str:
        if chaos.clear:
            self._faults.clear()
            self._restore()
        if (order := chaos.order) is None:
            return ""
        if refused := flaw(order):
            return refused
        if order.fault is Fault.ROOM_RETRACT and self._wrapped.retract is None:
            return f"{order.fault.value}: only a decode has rooms to retract"
        if order.fault is Fault.ROOM_RETRACT and not self._core.config.retract_tokens:
            return f"{order.fault.value}: retract_tokens is 0, the host keeps no pages"
        if order.fault not in LASTING:
            self._faults.arm(order)
            return ""
        if order.fault is Fault.DEADLINES_SCALE:
            self._scale(order.amount)
        elif refused := self._take_away(order):
            return refused
        self._lasting = [o for o in self._lasting if o.fault is not order.fault]
        self._lasting.append(order)
        return ""

    def _take_away(self, order: FaultOrder) -> str:
        ledger = self._core.pages if order.fault is Fault.PAGES_SHRINK else self._core.rows
        self._give_back(ledger)
        count = int(order.amount)
        if count > ledger.available:
            return f"{order.fault.value}: {count} wanted, {ledger.available} are free"
        ledger.take(TAKEN, count, Owner.REQUEST)
        return ""

    def _scale(self, factor: float) -> None:
        usual = self._usual
        timers = msgspec.structs.replace(usual, **{n: getattr(usual, n) * factor for n in SCALED})
        self._wrapped.scale = factor
        self._core.config = msgspec.structs.replace(self._core.config, timers=timers)

    def _restore(self) -> None:
        self._lasting.clear()
        self._scale(1.0)
        self._give_back(self._core.pages)
        self._give_back(self._core.rows)

    @staticmethod
    def _give_back(ledger: Ledger) -> None:
        taken = [i for i in range(ledger.size) if ledger.owner(i) == (Owner.REQUEST, TAKEN)]
        ledger.release(TAKEN, taken, Owner.REQUEST)


class Hooks:
    """The faults of a rank and the seams that they strike at."""

    def __init__(self, engine: Engine, backend: TransferBackend, role: Role) -> None:
        self._faults = Faults()
        self._engine = engine
        self.backend = ChaosBackend(backend, engine, self._faults)
        self.steps: Steps = ChaosEngine(engine, role, self._faults)

    def around(
        self, core: Any, shell: Shell, mailbox: SendsBytes, retract: Retract | None = None
    ) -> tuple[Core, Shell]:
        """Return core and shell as the reactor is to see them."""
        window = WindowPool(self._engine.windows, self._engine.window_pages)
        regions = self._engine.kv_regions()
        self.backend.places = places_of(regions, window, core.pages, core.window)
        self.backend.rows = core.rows
        wrapped = ChaosCore(core, self._faults, retract)
        return wrapped, ChaosShell(shell, core, wrapped, mailbox, self._faults)
