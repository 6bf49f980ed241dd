"""The threads that write: one per decode, so that a frozen one holds up nobody else.

Writes to one decode are done one after the other, in order; of one room the row comes last,
in a write of its own, after its pages have been acknowledged.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemons.cluster.errors import OperatorError
from daemons.prefill.commands import WriteKV
from daemons.prefill.events import WriteDone, WriteFailed, WriteSkipped
from daemons.protocol.handshake import KvRegion, RegisterBuffers
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import ROW_BYTES
from daemons.runtime.lanes import Job, Lane, Post
from daemons.runtime.row_memory import RowMemory
from daemons.transfer.backend import BadCopy, Copy, PeerGone, TransferBackend, WriteCut
from daemons.transfer.plan import copies

Wrote = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class Source:
    """Our own memory."""

    regions: Sequence[KvRegion]
    pages: int
    rows: RowMemory


@dataclass(frozen=True, slots=True)
class _Way:
    buffers: RegisterBuffers
    lane: Lane


class WriteLanes:
    """Carries out WriteKV and CallOffWrites."""

    def __init__(self, backend: TransferBackend, source: Source, post: Post, wrote: Wrote) -> None:
        self._backend = backend
        self._source = source
        self._post = post
        self._wrote = wrote  # told of bytes and seconds, by the lanes
        self._ways: dict[PeerId, _Way] = {}
        self._waiting: Counter[RoomKey] = Counter()
        self._called_off: set[RoomKey] = set()

    def learn(self, peer: PeerId, buffers: RegisterBuffers) -> None:
        """Open a lane to a decode that has registered."""
        self._ways[peer] = _Way(buffers, Lane(f"write-{peer.instance}", self._report))

    def forget(self, peer: PeerId) -> None:
        """Let a decode's lane end once its jobs are done."""
        if (way := self._ways.pop(peer, None)) is not None:
            way.lane.close(0.0)

    def write(self, command: WriteKV) -> WriteSkipped | None:
        """Queue a write; a decode that is gone already skips it at once."""
        way = self._ways.get(command.peer)
        if way is None:
            return WriteSkipped(command.key)
        self._waiting[command.key] += 1
        way.lane.submit(
            Job(
                lambda: self._write(command, way.buffers),
                lambda why: WriteFailed(command.key, cut=True, detail=why),
            )
        )
        return None

    def call_off(self, key: RoomKey) -> None:
        """Skip the writes of a room that have not begun."""
        if self._waiting[key] > 0:
            self._called_off.add(key)

    def settled(self, event: object) -> None:
        """Note the end of a write, so that what is remembered stays bounded."""
        if isinstance(event, WriteDone | WriteFailed | WriteSkipped):
            self._waiting[event.key] -= 1
            if self._waiting[event.key] <= 0:
                del self._waiting[event.key]
                self._called_off.discard(event.key)

    def _report(self, event: object) -> None:
        self._post(event)

    def _write(
        self, command: WriteKV, buffers: RegisterBuffers
    ) -> WriteDone | WriteFailed | WriteSkipped:
        key = command.key
        if key in self._called_off:
            return WriteSkipped(key)
        try:
            pages = copies(
                self._source.regions,
                buffers.regions,
                command.source_pages,
                command.target_pages,
                source_pool_pages=self._source.pages,
                target_pool_pages=buffers.pages,
            )
            began_s = time.monotonic()
            if pages:
                self._backend.write(buffers.session, pages)
            sent_bytes = sum(copy.bytes for copy in pages)
            if command.row is not None:
                self._backend.write(buffers.session, [self._row(command, buffers)])
                sent_bytes += ROW_BYTES
            self._wrote(sent_bytes, time.monotonic() - began_s)
        except PeerGone as error:
            return WriteFailed(key, cut=False, detail=f"nobody answers: {error}")
        except (BadCopy, OperatorError) as error:  # bad addresses; no engine could be had
            return WriteFailed(key, cut=False, detail=f"refused here: {error}")
        except WriteCut as error:
            return WriteFailed(key, cut=True, detail=f"cut: {error}")
        return WriteDone(key, sent_bytes)

    def _row(self, command: WriteKV, buffers: RegisterBuffers) -> Copy:
        assert command.row is not None
        self._source.rows.write(command.source_row, command.row)
        target = buffers.rows_address + command.target_row * ROW_BYTES
        return Copy(self._source.rows.address_of(command.source_row), target, ROW_BYTES)
