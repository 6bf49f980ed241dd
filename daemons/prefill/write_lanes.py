"""The threads that write: one per decode, so that a frozen one holds up nobody else.

Writes of one room are done one after the other, in order; the row comes last, in a write of its
own, after its pages have been acknowledged. A write that follows a forward sends groups of layers
as they are done; between two groups nothing of it is under way.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemons.cluster.errors import OperatorError
from daemons.engine.progress import Progress
from daemons.prefill.chunk_sums import ChunkSums
from daemons.prefill.commands import WriteKV
from daemons.prefill.events import WriteDone, WriteFailed, WriteSkipped
from daemons.prefill.peer_lane import Carrying, PeerLane, Task
from daemons.protocol.handshake import KvRegion, RegisterBuffers
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import ROW_BYTES, with_sums
from daemons.runtime.lanes import Post
from daemons.runtime.row_memory import RowMemory
from daemons.transfer.backend import BadCopy, Copies, Copy, PeerGone, TransferBackend, WriteCut
from daemons.transfer.plan import Pairing, pairing

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


@dataclass(slots=True)
class _Way:
    buffers: RegisterBuffers
    pairing: Pairing | None = None  # computed with the first write


class WriteLanes:
    """Carries out WriteKV and CallOffWrites."""

    def __init__(self, backend: TransferBackend, source: Source, post: Post, wrote: Wrote) -> None:
        self._backend = backend
        self._source = source
        self._post = post
        self._wrote = wrote  # told of bytes and seconds, by the lanes
        self._layer_bytes = sum(r.page_bytes for r in source.regions) / source.progress.layers
        self._ways: dict[PeerId, PeerLane] = {}
        self._waiting: Counter[RoomKey] = Counter()
        self._called_off: set[RoomKey] = set()

    def learn(self, peer: PeerId, buffers: RegisterBuffers) -> None:
        """Open a lane to a decode that has registered."""
        self._source.sums.learn(peer, buffers.regions)
        way = _Way(buffers)
        carrying = Carrying(self._is_ready, lambda task: self._advance(task, way), _broken)
        self._ways[peer] = PeerLane(f"write-{peer.instance}", carrying, self._post)

    def forget(self, peer: PeerId) -> None:
        """Let a decode's lane end once its jobs are done."""
        if (lane := self._ways.pop(peer, None)) is not None:
            lane.close()
            self._source.sums.forget(peer)

    def write(self, command: WriteKV) -> WriteSkipped | None:
        """Queue a write; a decode that is gone already skips it at once."""
        lane = self._ways.get(command.peer)
        if lane is None:
            return WriteSkipped(command.key)
        self._waiting[command.key] += 1
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
        if not command.step or command.key in self._called_off:
            return True
        layers = progress.layers_of(command.step)
        ready_bytes = (layers - task.layers) * len(command.source_pages) * self._layer_bytes
        return layers == progress.layers or ready_bytes >= GROUP_BYTES

    def _advance(self, task: Task, way: _Way) -> WriteDone | WriteFailed | WriteSkipped | None:
        """Write what is ready of a write; None while more is to come."""
        command, progress = task.command, self._source.progress
        key = command.key
        layers = progress.layers_of(command.step) if command.step else progress.layers
        if key in self._called_off or progress.is_broken(command.step):
            return WriteSkipped(key)
        try:
            self._write_layers(task, way, range(task.layers, layers))
            task.layers = layers
            if layers < progress.layers:
                return None
            self._source.sums.sent(command.peer, key, command.first, command.source_pages)
            if command.row is not None:
                self._timed(task, way, [self._row(command, way.buffers)], ROW_BYTES)
        except PeerGone as error:
            return WriteFailed(key, cut=False, detail=f"nobody answers: {error}")
        except (BadCopy, OperatorError) as error:  # bad addresses; no engine could be had
            return WriteFailed(key, cut=False, detail=f"refused here: {error}")
        except WriteCut as error:
            return WriteFailed(key, cut=not error.settled, detail=f"cut: {error}")
        return WriteDone(key, task.sent_bytes, task.early_bytes)

    def _write_layers(self, task: Task, way: _Way, layers: range) -> None:
        command = task.command
        if way.pairing is None:
            way.pairing = pairing(
                self._source.regions,
                way.buffers.regions,
                source_pool_pages=self._source.pages,
                target_pool_pages=way.buffers.pages,
            )
        runs = way.pairing.runs(command.source_pages, command.target_pages)
        pages = way.pairing.copies(runs, layers)
        if len(pages):
            self._timed(task, way, pages, pages.total_bytes)

    def _timed(self, task: Task, way: _Way, some: Copies, sent_bytes: int) -> None:
        began_s = time.monotonic()
        self._backend.write(way.buffers.session, some)
        self._wrote(sent_bytes, time.monotonic() - began_s)
        task.sent_bytes += sent_bytes
        if self._source.progress.is_under_way(task.command.step):
            task.early_bytes += sent_bytes

    def _row(self, command: WriteKV, buffers: RegisterBuffers) -> Copy:
        assert command.row is not None
        sums = self._source.sums.take(command.key)
        row = with_sums(command.row, sums) if sums else command.row
        self._source.rows.write(command.source_row, row)
        target = buffers.rows_address + command.target_row * ROW_BYTES
        return Copy(self._source.rows.address_of(command.source_row), target, ROW_BYTES)


def _broken(task: Task, why: str) -> WriteFailed:
    return WriteFailed(task.command.key, cut=True, detail=why)
