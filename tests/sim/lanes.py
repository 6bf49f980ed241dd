"""Fake one-sided writes: pages land one by one, then the row; outcomes are done, gone and cut.

What is in the receiver's sockets when a writer is cut or dies lands later, within less than
``LATE_SHARE`` of ``settle_s`` of the receiver's waking time. Nothing else of that write does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from daemons.kv.window import first_needed_page
from daemons.prefill.chunk_sums import ChunkSums
from daemons.prefill.commands import WriteKV
from daemons.prefill.events import WriteDone, WriteFailed, WriteSkipped
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import with_sums
from tests.sim.invariants import Violation, check_landing, check_source, check_write
from tests.sim.memory import MarkSums

if TYPE_CHECKING:
    from tests.sim.process import Process

LATE_SHARE = 0.7
SOCKET_PIECES = 4  # pages that fit into sockets while nobody reads them
PAGE_BYTES = 100
RETRY_S = 0.05  # a stalled writer looks again
LOOK_S = 0.002  # and one that follows a forward


@dataclass(slots=True, eq=False)
class Piece:
    """One page, one window page, or the row, on its way."""

    write: WriteKV
    writer: Process
    index: int  # of the page in the write, window pages behind the others; behind all: the row

    @property
    def is_row(self) -> bool:
        """Whether this is the last piece, the metadata row."""
        return self.index == pages_of(self.write)

    @property
    def is_window(self) -> bool:
        """Whether this is a page of the layers with a window."""
        return len(self.write.target_pages) <= self.index < pages_of(self.write)

    @property
    def source(self) -> int:
        """Where it is read."""
        return (*self.write.source_pages, *self.write.source_window)[self.index]

    @property
    def target(self) -> int:
        """Where it lands."""
        return (*self.write.target_pages, *self.write.target_window)[self.index]


def pages_of(write: WriteKV) -> int:
    """Return how many pages, of both kinds, a write has."""
    return len(write.target_pages) + len(write.target_window)


@dataclass(slots=True, eq=False)
class Write:
    """A write under way."""

    command: WriteKV
    target: Process
    next: int = 0
    unlanded: int = 0  # pieces in the sockets of a frozen receiver
    stalled_s: float | None = None
    called_off: bool = False
    over: bool = False
    summed: bool = False

    @property
    def pieces(self) -> int:
        """How many pieces there are, the row counted."""
        return pages_of(self.command) + (self.command.row is not None)

    @property
    def pages_left(self) -> int:
        """How many pages have not left."""
        return max(0, pages_of(self.command) - self.next)


@dataclass(slots=True)
class Lanes:
    """The writers of one process: one lane per peer, serial."""

    process: Process
    known: set[PeerId] = field(default_factory=set)
    queues: dict[PeerId, deque[WriteKV]] = field(default_factory=dict)
    active: dict[PeerId, Write | WriteKV] = field(default_factory=dict)
    sums: ChunkSums = field(init=False)

    def __post_init__(self) -> None:
        plan = self.process.world.plan
        self.sums = ChunkSums(MarkSums(self.process.memory), plan.checksum)  # type: ignore[arg-type]

    def queue(self, command: WriteKV) -> None:
        """Take a write; it begins when those before it are over."""
        check_write(self.process, command)
        if len(command.source_pages) != len(command.target_pages):
            raise Violation(f"{command} is uneven")
        self._check_window(command)
        self.queues.setdefault(command.peer, deque()).append(command)
        self._begin(command.peer)

    def call_off(self, key: RoomKey) -> None:
        """Skip what has not begun, and what follows a forward and is between two pieces."""
        for write in self.active.values():
            if isinstance(write, Write) and write.command.key == key and write.command.step:
                write.called_off = True
        for peer, waiting in self.queues.items():
            for command in [c for c in waiting if c.key == key]:
                waiting.remove(command)
                self._report(peer, WriteSkipped(key))

    def forget(self, peer: PeerId) -> None:
        """Know a peer's memory no more; what has begun goes on."""
        self.known.discard(peer)

    def cut_all(self) -> None:
        """All connections break."""
        for write in list(self.active.values()):
            if isinstance(write, Write) and not write.over:
                self._cut(write, "connection broke")

    def die(self) -> None:
        """The process is gone: what is in sockets lands, nothing else leaves."""
        for peer in list(self.active):
            write = self.active.pop(peer)
            if isinstance(write, Write) and not write.over:
                self._leave_in_sockets(write)

    def moves(self, key: RoomKey) -> bool:
        """Say whether a write of a room is under way."""
        return any(
            write.command.key == key for write in self.active.values() if isinstance(write, Write)
        )

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or under way."""
        return not self.active and not any(self.queues.values())

    def _begin(self, peer: PeerId) -> None:
        waiting = self.queues.get(peer)
        if not waiting or peer in self.active:
            return
        process, world = self.process, self.process.world
        command = waiting.popleft()
        check_write(process, command)
        self.active[peer] = command
        target = world.lives.get(peer)
        delay_s = world.rng.random() * 2 * world.plan.page_s
        if target is None or not target.alive or peer not in self.known or self._random("gone"):
            world.after(delay_s, self._over, peer, WriteFailed(command.key, False, "peer gone"))
            return
        if world.network.cut(process.instance, target.instance):
            failed = WriteFailed(command.key, False, "no connection")
            world.after(world.plan.write_timeout_s, self._over, peer, failed)
            return
        write = Write(command, target)
        self.active[peer] = write
        world.after(delay_s, self._advance, write)

    def _check_window(self, command: WriteKV) -> None:
        """What no token behind the prompt sees does not travel."""
        plan, window = self.process.world.plan, command.source_window
        if len(window) != len(command.target_window):
            raise Violation(f"{command} is uneven")
        first = first_needed_page(command.prompt_tokens, plan.window, plan.page_size)
        if window and (plan.window is None or command.window_first < first):
            raise Violation(f"{command} has window pages that nobody sees")
        self.process.world.seen["window pages sent"] += len(window)

    def _advance(self, write: Write) -> None:
        """Send the next piece, or stall, or end."""
        process, world, target = self.process, self.process.world, write.target
        if not process.alive or write.over:
            return
        if process.when_thawed(partial(self._advance, write)):
            return
        if self._broken_off(write):
            write.over = True
            world.seen["writes broken off"] += write.next > 0
            self._over(write.command.peer, WriteSkipped(write.command.key))
        elif write.command.step > process.engine.written:
            world.seen["writes that follow a forward"] += 1
            world.after(LOOK_S, self._advance, write)
        elif not target.alive:
            self._cut(write, "connection reset")
        elif not write.summed and not write.pages_left and not write.unlanded:
            self._sum(write)
            self._advance(write)
        elif write.next == write.pieces and not write.unlanded:
            write.over = True
            sent_bytes = PAGE_BYTES * pages_of(write.command)
            self._over(write.command.peer, WriteDone(write.command.key, sent_bytes))
        elif self._stalled(write):
            self._wait(write)
        else:
            write.stalled_s = None
            self._send(write)
            if self._random("cut"):
                self._cut(write, "connection broke")
            else:
                world.after(world.rng.random() * 2 * world.plan.page_s, self._advance, write)

    def _sum(self, write: Write) -> None:
        """Every page is acknowledged: what was sent of a chunk is summed."""
        command = write.command
        write.summed = True
        self.sums.learn(command.peer, self.process.world.regions)
        self.sums.sent(command.peer, command.key, command.source, command.prompt_tokens)

    def _broken_off(self, write: Write) -> bool:
        step = write.command.step
        is_vain = write.called_off or step in self.process.engine.broken
        return step > 0 and is_vain and not write.unlanded

    def _stalled(self, write: Write) -> bool:
        process, target = self.process, write.target
        if process.world.network.cut(process.instance, target.instance):
            return True
        if write.unlanded:  # the row leaves when every page is acknowledged
            return not write.pages_left or write.unlanded >= SOCKET_PIECES
        return False

    def _wait(self, write: Write) -> None:
        world = self.process.world
        if write.stalled_s is None:
            write.stalled_s = world.now
        if world.now - write.stalled_s >= world.plan.write_timeout_s:
            self._cut(write, "no progress")
        else:
            world.after(RETRY_S, self._advance, write)

    def _send(self, write: Write) -> None:
        piece = Piece(write.command, self.process, write.next)
        write.next += 1
        check_source(self.process, write.command)
        content = self._content(piece)
        if not isinstance(content, bytes) and self._random("spoil"):
            at = self.process.world.rng.randrange(len(content))
            content[at] ^= 1 << self.process.world.rng.randrange(20)
            write.target.spoilt.add(write.command.key)
        if write.target.frozen:
            write.unlanded += 1
            delay_s = self._late_s(write.target)
            land = partial(self._land_later, piece, content, delay_s, write)
            write.target.when_thawed(land)
        else:
            _land(piece, write.target, content)

    def _land_later(
        self, piece: Piece, content: list[int] | bytes, delay_s: float, write: Write
    ) -> None:
        """After a thaw: the receiver reads its sockets in order."""

        def land() -> None:
            write.unlanded -= 1
            _land(piece, write.target, content)

        due_s = write.target.awake_s + delay_s
        _land_at(write.target, due_s, land)

    def _cut(self, write: Write, detail: str) -> None:
        self.process.world.seen["writes cut"] += 1
        self._leave_in_sockets(write)
        self._over(write.command.peer, WriteFailed(write.command.key, True, detail))

    def _leave_in_sockets(self, write: Write) -> None:
        """Some more pieces are on their way although the writer has stopped."""
        world, target = self.process.world, write.target
        write.over = True
        if world.network.cut(self.process.instance, target.instance) or not target.alive:
            return
        room = max(0, SOCKET_PIECES - write.unlanded)
        world.seen["writers cut or dead"] += 1
        alone = not write.pages_left and not write.unlanded  # else the row has not left
        left = write.pieces - write.next if alone else write.pages_left
        more = min(world.rng.randint(0, room), left)
        delays_s = sorted(self._late_s(target) for _ in range(more))
        for delay_s in delays_s:
            piece = Piece(write.command, self.process, write.next)
            write.next += 1
            content = self._content(piece)
            if piece.is_row and world.rng.random() < 0.3:  # torn
                assert isinstance(content, bytes)
                content = content[: len(content) // 100] + bytes(len(content) * 99 // 100 + 1)
                content = content[: len(write.command.row or b"")]
            world.seen["pieces late"] += 1
            _land_at(target, target.awake_s + delay_s, partial(_land, piece, target, content))

    def _late_s(self, target: Process) -> float:
        world = self.process.world
        return world.rng.random() * LATE_SHARE * world.plan.timers.settle_s

    def _content(self, piece: Piece) -> list[int] | bytes:
        if piece.is_row:
            assert piece.write.row is not None
            return with_sums(piece.write.row, self.sums.take(piece.write.key))
        memory = self.process.memory
        return memory.window_page(piece.source) if piece.is_window else memory.page(piece.source)

    def _over(self, peer: PeerId, report: WriteDone | WriteFailed | WriteSkipped) -> None:
        if self.process.alive:
            self.active.pop(peer, None)
            self._report(peer, report)
            self._begin(peer)

    def _report(self, peer: PeerId, report: WriteDone | WriteFailed | WriteSkipped) -> None:
        delay_s = self.process.world.rng.random() * 0.005
        self.process.world.after_in_order((self.process.me, peer), delay_s, self.process, report)

    def _random(self, what: str) -> bool:
        world = self.process.world
        rate: float = getattr(world.plan, what)
        return world.faulty and rate > 0 and world.rng.random() < rate


def _land_at(target: Process, due_awake_s: float, land: partial[None] | object) -> None:
    """Land when the target has been awake for long enough."""
    if not target.alive or target.when_thawed(partial(_land_at, target, due_awake_s, land)):
        return
    left_s = due_awake_s - target.awake_s
    if left_s > 1e-9:
        target.world.after(left_s, _land_at, target, due_awake_s, land)
    else:
        land()  # type: ignore[operator]


def _land(piece: Piece, target: Process, content: list[int] | bytes) -> None:
    """Bytes appear in the target's memory."""
    if not target.alive:
        return
    target.world.note(target, ("landed", str(piece.write.key), piece.index))
    owner = check_landing(piece, target)
    target.world.seen[f"pieces landed in {owner}"] += 1
    if isinstance(content, bytes):
        target.memory.rows[piece.write.target_row] = content
    elif piece.is_window:
        target.memory.put_window_page(piece.target, content)
    else:
        target.memory.put_page(piece.target, content)
