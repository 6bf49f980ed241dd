"""The threads that write: one per decode, so that a frozen one holds up nobody else.

Writes of one room are done one after the other, in order; the row comes last, in a write of its
own, after its pages have been acknowledged. A write that follows a forward is planned while that
runs, and sends groups of layers as they are done; between two groups nothing of it is under way.
Of a layer with a window only the pages travel that a token behind the prompt can see.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

from daemons.cluster.errors import OperatorError
from daemons.engine.progress import Progress
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.prefill.chunk_sums import ChunkSums
from daemons.prefill.commands import WriteKV
from daemons.prefill.events import WriteDone, WriteFailed, WriteSkipped
from daemons.prefill.in_flight import InFlight
from daemons.prefill.peer_lane import QUANTUM_BYTES, Carrying, PeerLane, Task
from daemons.prefill.wire_tally import WireTally
from daemons.protocol.handshake import KvRegion, RegisterBuffers
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import ROW_BYTES, with_sums
from daemons.runtime.lanes import Post
from daemons.runtime.row_memory import RowMemory
from daemons.transfer.backend import (
    BadCopy,
    Copy,
    CopyTable,
    PeerGone,
    TransferBackend,
    WriteCut,
    table,
)
from daemons.transfer.itinerary import Itinerary, Part
from daemons.transfer.plan import Pairing, Runs, pairing
from daemons.transfer.slices import cut

GROUP_BYTES = 256 * 1024  # layers wait for each other until so much of a room is ready

Wrote = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class Source:
    """Our own memory."""

    regions: Sequence[KvRegion]
    pages: int
    rows: RowMemory
    progress: Progress  # of the forwards that writes follow
    sums: ChunkSums
    in_flight_bytes: int = 256 << 20  # to all decodes
    window: WindowPool = NO_POOL


@dataclass(slots=True)
class _Way:
    buffers: RegisterBuffers
    pairings: dict[bool, Pairing] = field(default_factory=dict)  # by whether of window pages


class WriteLanes:
    """Carries out WriteKV and CallOffWrites."""

    def __init__(self, backend: TransferBackend, source: Source, post: Post, wrote: Wrote) -> None:
        self._backend = backend
        self._source = source
        self._post = post
        self._wrote = wrote  # told of bytes and seconds, by the lanes
        self.tally = WireTally()
        self._in_flight = InFlight(source.in_flight_bytes)
        self._page_bytes = min((r.page_bytes for r in source.regions), default=1)
        self._layer_bytes = sum(r.page_bytes for r in source.regions) / source.progress.layers
        self._ways: dict[PeerId, PeerLane] = {}
        self._waiting: Counter[RoomKey] = Counter()
        self._called_off: set[RoomKey] = set()

    def learn(self, peer: PeerId, buffers: RegisterBuffers) -> None:
        """Open a lane to a decode that has registered."""
        self._source.sums.learn(peer, buffers.regions)
        way = _Way(buffers)
        carrying = Carrying(
            self._is_ready,
            lambda task: self._prepare(task, way),
            lambda task: self._advance(task, way),
            self._broken,
        )
        self._ways[peer] = PeerLane(f"write-{peer.instance}", carrying, self._post)

    def forget(self, peer: PeerId) -> None:
        """Let a decode's lane end once its jobs are done."""
        if (lane := self._ways.pop(peer, None)) is not None:
            lane.close()
            self._source.sums.forget(peer)

    def write(self, command: WriteKV) -> WriteSkipped | None:
        """Queue a write; a decode that is gone already skips it at once."""
        self._waiting[command.key] += 1  # also when it ends at once: ``settled`` hears of it
        lane = self._ways.get(command.peer)
        if lane is None:
            return WriteSkipped(command.key)
        lane.submit(command)
        return None

    def call_off(self, key: RoomKey) -> None:
        """Skip the writes of a room that have not begun."""
        if self._waiting[key] > 0:
            self._called_off.add(key)
            for lane in self._ways.values():
                lane.look()

    def settled(self, event: object) -> None:
        """Note the end of a write, so that what is remembered stays bounded."""
        if isinstance(event, WriteDone | WriteFailed | WriteSkipped):
            self._waiting[event.key] -= 1
            if self._waiting[event.key] <= 0:
                del self._waiting[event.key]
                self._called_off.discard(event.key)

    def _is_ready(self, task: Task) -> bool:
        """Say whether a group of layers can be sent, or the write is over."""
        command, progress = task.command, self._source.progress
        if not command.step or task.slices or command.key in self._called_off:
            return True
        return progress.layers_of(command.step) >= self._next_group(task).stop

    def _next_group(self, task: Task) -> range:
        """Return the layers that a write goes on with at the soonest."""
        command, all_layers = task.command, self._source.progress.layers
        pages = max(len(command.source_pages), len(command.source_window))
        layer_bytes = pages * self._layer_bytes
        least = ceil(GROUP_BYTES / layer_bytes) if layer_bytes else all_layers
        return range(task.layers, min(task.layers + max(1, least), all_layers))

    def _advance(self, task: Task, way: _Way) -> WriteDone | WriteFailed | WriteSkipped | None:
        """Write what is ready of a write; None while more is to come."""
        command, progress = task.command, self._source.progress
        key = command.key
        layers = progress.layers_of(command.step) if command.step else progress.layers
        if key in self._called_off or progress.is_broken(command.step):
            return WriteSkipped(key)
        self._begin_waiting(task)
        try:
            self._write_slice(task, way, layers)
            if task.slices or task.layers < progress.layers:
                return None
            self._source.sums.sent(command.peer, key, command.source, command.prompt_tokens)
            if command.row is not None:
                with self._in_flight.held(ROW_BYTES):
                    self._timed(task, way, table([self._row(command, way.buffers)]))
        except (PeerGone, BadCopy, OperatorError, WriteCut) as error:
            self._stop(task)
            return _failed(key, error)
        transport = self._backend.transport_to(way.buffers.session)
        return WriteDone(key, task.sent_bytes, task.early_bytes, transport, task.wire_s)

    def _stop(self, task: Task) -> None:
        """Count a write that failed; what follows of its room would begin before the core knows."""
        self.tally.failed(task.command.peer.instance)
        self._called_off.add(task.command.key)

    def _broken(self, task: Task, why: str) -> WriteFailed:
        """End a write that raised what nobody foresaw: its bytes may land yet."""
        self._stop(task)
        return WriteFailed(task.command.key, cut=True, detail=why)

    def _begin_waiting(self, task: Task) -> None:
        """Count how long a write has waited for its turn, and begin to wait for the next one."""
        ready_s, task.ready_s = task.ready_s, None
        if ready_s is None:
            return
        ended_s = self._source.progress.ended_s(task.command.step)
        if ended_s is not None:  # the lane was busy then, and has looked later
            ready_s = min(ready_s, max(ended_s, task.served_s))
        self.tally.waited(task.command.peer.instance, time.monotonic() - ready_s)

    def _write_slice(self, task: Task, way: _Way, layers: int) -> None:
        """Write a quantum of the layers that are done, or what is left of them."""
        if not task.slices:
            if task.itinerary is None:
                task.itinerary = self._itinerary(task.command, way)
            task.slices.extend(task.itinerary.slices(range(task.layers, layers)))
            task.planned = layers
        if task.slices:
            with self._in_flight.held(task.slices[0].total_bytes) as most:
                if task.slices[0].total_bytes > most:
                    task.slices.extendleft(reversed(cut(task.slices.popleft(), most)))
                self._timed(task, way, task.slices[0])
            task.slices.popleft()
        if not task.slices:
            task.layers = task.planned

    def _prepare(self, task: Task, way: _Way) -> None:
        """Plan all layers of a write, of which none may be ready yet, and those that come next."""
        if task.itinerary is None:
            task.itinerary = self._itinerary(task.command, way)
        task.itinerary.expect(self._next_group(task))

    def _itinerary(self, command: WriteKV, way: _Way) -> Itinerary:
        pool, parts = self._source.window, []
        known: dict[tuple[bool, int], Runs] = {}
        for some in pool.windows.alike(range(self._source.progress.layers)):
            own = pool.has(some.start)
            source = command.source_window if own else command.source_pages
            target = command.target_window if own else command.target_pages
            first = command.window_first if own else command.first
            unseen = pool.windows.unseen(some.start, first, command.prompt_tokens)
            paired = self._paired(way, own=own)
            if (runs := known.get((own, unseen))) is None:
                runs = known[own, unseen] = paired.runs(source[unseen:], target[unseen:])
            parts.append(Part(some, paired, runs))
        return Itinerary(parts, QUANTUM_BYTES)

    def _paired(self, way: _Way, *, own: bool) -> Pairing:
        """Return the pairs of the layers that have window pages of their ``own``, or of others."""
        if own not in way.pairings:
            source, theirs = self._source, way.buffers
            ours = [region for region in source.regions if source.window.has(region.layer) is own]
            way.pairings[own] = pairing(
                ours,
                [region for region in theirs.regions if source.window.has(region.layer) is own],
                source_pool_pages=source.window.pages if own else source.pages,
                target_pool_pages=theirs.window_pages if own else theirs.pages,
            )
        return way.pairings[own]

    def _timed(self, task: Task, way: _Way, some: CopyTable) -> None:
        sent_bytes, peer = some.total_bytes, way.buffers.session
        with self.tally.busy(task.command.peer.instance):
            began_s = time.monotonic()
            self._backend.write(peer, some)
            task.served_s = time.monotonic()
        took_s = task.served_s - began_s
        self._wrote(sent_bytes, took_s)
        self.tally.wrote(
            task.command.peer.instance,
            sent_bytes,
            len(some),
            self._unmerged(sent_bytes),
            took_s,
            self._backend.transport_to(peer),
        )
        task.sent_bytes += sent_bytes
        task.wire_s += took_s
        if self._source.progress.is_under_way(task.command.step):
            task.early_bytes += sent_bytes

    def _unmerged(self, sent_bytes: int) -> int:
        """Return how many copies so many bytes are, page by page."""
        return max(1, sent_bytes // self._page_bytes)

    def _row(self, command: WriteKV, buffers: RegisterBuffers) -> Copy:
        assert command.row is not None
        sums = self._source.sums.take(command.key)
        row = with_sums(command.row, sums) if sums else command.row
        self._source.rows.write(command.source_row, row)
        target = buffers.rows_address + command.target_row * ROW_BYTES
        return Copy(self._source.rows.address_of(command.source_row), target, ROW_BYTES)


def _failed(key: RoomKey, error: Exception) -> WriteFailed:
    match error:
        case PeerGone():
            return WriteFailed(key, cut=False, detail=f"nobody answers: {error}")
        case WriteCut():
            return WriteFailed(key, cut=not error.settled, detail=f"cut: {error}")
        case _:  # bad addresses; no engine could be had
            return WriteFailed(key, cut=False, detail=f"refused here: {error}")
