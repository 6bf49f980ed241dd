"""The hand-over at the decode's side: prefill writes, we believe the row, and the text begins.

Prefill's word moves a room on, but only a right row makes it ours: it is written last, when every
page was acknowledged. So a hand-over whose last message was lost with its sender is whole all the
same, and rooms of a writer that is gone are looked at once more before they fail. What prefill
summed is compared, whatever our own setting is; where ours is ``all``, pages without a sum fail the
room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from daemons.decode.commands import ReadRow, VerifySums
from daemons.decode.ends import Ends
from daemons.decode.events import RowRead, SumsVerified
from daemons.decode.memory import Memory
from daemons.decode.outbox import Outbox
from daemons.decode.request import Request
from daemons.decode.stages import Stages
from daemons.decode.texts import Texts
from daemons.kv.stretch import Stretch
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.handshake import Fence, Progress
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import ChunkSum, Row, RowState
from daemons.protocol.status import FINAL, Status
from daemons.runtime.liveness import Life, Liveness
from daemons.runtime.recorder import Recorder

HINT = (
    "transfer.checksum is all here and must be all for {} too, which sums no memory but the host's"
)


@dataclass(slots=True)
class HandOver:
    """Rooms in transfer, until every byte has landed."""

    stages: Stages
    memory: Memory
    ends: Ends
    texts: Texts
    liveness: Liveness
    recorder: Recorder
    out: Outbox
    checksum: Literal["off", "sampled", "all"]  # ours

    def progress(self, progress: Progress, now: float) -> None:
        """Take a writer's word about a room; about one that is over a final word is a fence."""
        key = RoomKey(progress.room, progress.attempt)
        request = self.stages.transfer.of(progress)
        if request is None:
            if progress.status in FINAL:
                self.ends.quarantine.answered(key, progress.sender, progress.fence, now)
            return
        moved = progress.status is not request.status
        self.stages.transfer.advance(request, progress, now)
        if request.status is Status.FAILED:
            failure = progress.failure or Failure(
                Cause.PEER_ABORTED, "transfer", progress.sender.instance
            )
            self.ends.fail(request, failure, now, progress.fence)
        elif request.status is Status.SUCCESS:
            assert request.row is not None
            self.out.do(ReadRow(key, request.row))
        elif moved:
            self.recorder.note(key, f"prefill says {request.status.name.lower()}", now)

    def row_read(self, event: RowRead, now: float) -> None:
        """Take a look at a row: right, not there yet, or another's."""
        request = self.stages.transfer.rooms.get(event.key)
        if request is None or request.landed is not None:
            return
        if event.row is None and request.doom is not None:
            self.ends.fail(request, request.doom, now)
            return
        if event.state is RowState.EMPTY:
            return  # looked at again by the tick, until the progress deadline
        if event.row is None:
            why = "the row is not this room's"
            self._refuse(request, Cause.TRANSFER_BAD_ROW, why, now)
            return
        offered = self.memory.offered(request)
        if self.checksum == "all" and (missing := unsummed(offered, event.row.sums)):
            self.out.count("checksums_missing")
            why = f"{missing} came without a sum: {HINT.format(request.submit.prefill)}"
            self._refuse(request, Cause.TRANSFER_CHECKSUM, why, now)
            return
        if event.row.sums:
            request.landed, request.status = event.row, Status.SUCCESS  # the row is written last
            tokens = request.prompt_tokens
            self.out.do(VerifySums(request.key, offered, event.row.sums, tokens))
            return
        self._commit(request, event.row, now)

    def verified(self, event: SumsVerified, now: float) -> None:
        """Take the comparison of what has landed with what prefill summed."""
        request = self.stages.transfer.rooms.get(event.key)
        if request is None or request.landed is None:
            return
        self.out.count("chunks_verified", len(request.landed.sums))
        if event.wrong:
            self.out.count("checksum_mismatches")
            self._refuse(request, Cause.TRANSFER_CHECKSUM, event.wrong, now)
            return
        self._commit(request, request.landed, now)

    def doom(self, peer: PeerId, cause: Cause, detail: str) -> None:
        """Fail the rooms that a peer has not finished; a right row proves that it had."""
        for request in self.stages.transfer.rooms.values():
            if request.peer == peer and request.row is not None:
                request.doom = Failure(cause, "transfer", peer.instance, detail)
                self.out.do(ReadRow(request.key, request.row))

    def tick(self, now: float) -> None:
        """Look again at rows that are announced, and tell a prefill again that may not know."""
        transfer = self.stages.transfer
        for request in transfer.rooms.values():
            if request.status is Status.SUCCESS and request.row is not None:
                self.out.do(ReadRow(request.key, request.row))
        for request in transfer.unheard(now):
            if request.peer and self.liveness.life(request.peer) is Life.ALIVE:
                self.out.count("destinations_repeated")
                self.out.destination(request, self.memory.cache.page_size)

    def _refuse(self, request: Request, cause: Cause, detail: str, now: float) -> None:
        """Fail a room whose writer is done, and has written something else."""
        failure = Failure(cause, "transfer", request.submit.prefill, detail)
        self.ends.fail(request, failure, now, Fence.CLEAN)

    def _commit(self, request: Request, row: Row, now: float) -> None:
        """The writer is done: pages and row are ours, and the first token is the client's."""
        del self.stages.transfer.rooms[request.key]
        self.memory.landed(request)
        tale = self.recorder.enter(
            request.key, "prebuilt", "every byte landed", now, sent_bytes=request.sent_bytes
        )
        tale.cached_tokens = row.cached_tokens
        self.texts.begin(request, row.first, now, row.cached_tokens)


def unsummed(offered: Stretch, sums: Sequence[ChunkSum]) -> str:
    """Return the first run of text pages, of those that were to be written, that no sum is over.

    "" when there is none. ``sums`` are in any order.
    """
    at = offered.begin
    for first, count, _ in sorted(sums):
        if first > at:
            return f"pages {at} to {min(first, offered.end) - 1}" if at < offered.end else ""
        at = max(at, first + count)
    return f"pages {at} to {offered.end - 1}" if at < offered.end else ""
