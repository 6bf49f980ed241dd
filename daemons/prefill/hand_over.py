"""The hand-over at the prefill's side: what is computed is written, and each write accounted for.

A room succeeds with its last byte. When a write breaks, the room fails, and its decode is doubted.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.kv.window_pool import WindowPool
from daemons.prefill.doubts import Doubts
from daemons.prefill.ends import Ends
from daemons.prefill.events import WriteDone, WriteFailed, WriteSkipped
from daemons.prefill.inflight_queue import next_write
from daemons.prefill.outbox import Outbox
from daemons.prefill.request import Request
from daemons.prefill.stages import Stages
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.handshake import Fence
from daemons.protocol.status import Status
from daemons.runtime.peers import Peers
from daemons.runtime.recorder import Recorder

NOT_CARRIED_OUT = "a write was not carried out"


@dataclass(slots=True)
class HandOver:
    """Writes, from the order to the end."""

    stages: Stages
    ends: Ends
    doubts: Doubts
    peers: Peers
    recorder: Recorder
    out: Outbox
    page_size: int
    window: WindowPool

    def send(self, request: Request, step: int = 0) -> None:
        """Order the write of what is computed and not handed over, and of what ``step`` computes.

        ``step`` 0: no forward of the room is under way.
        """
        if (write := next_write(request, self.page_size, step, self.window)) is not None:
            request.unsettled += 1
            self.out.do(write)

    def written(self, event: WriteDone | WriteFailed | WriteSkipped, now: float) -> None:
        """Take the end of a write, and settle the room when it was the last one."""
        key = event.key
        request = self.stages.ending.get(key) or self.stages.get(key)
        if request is None:
            return
        request.unsettled -= 1
        request.since_s = now
        self.stages.inflight.lane_moved(request.peer, now)
        match event:
            case WriteDone():
                self._count(request, event, now)
            case WriteFailed():
                request.fence = Fence.CUT if event.cut else request.fence
                self.broke(request, event.detail, now)
                return
            case WriteSkipped() if request.failure is None and request.step_tokens:
                request.is_skipped = True  # its forward broke, and will say so
                return
            case WriteSkipped() if request.failure is None:  # nobody called it off
                self.broke(request, NOT_CARRIED_OUT, now)
                return
            case WriteSkipped():
                pass
        if request.failure is not None:
            self.ends.settle(request, now)
        elif key in self.stages.inflight.rooms and request.unsettled == 0:
            self.ends.succeed(request, now)
        else:
            self.out.progress(request, Status.TRANSFERRING)

    def broke(self, request: Request, detail: str, now: float) -> None:
        """Fail a room whose bytes do not all arrive, and look whether its decode still lives."""
        stage = self.recorder.stage(request.key)
        failure = Failure(Cause.TRANSFER_FAILED, stage, request.peer_name, detail)
        self.ends.fail(request, failure, now)
        if request.peer is not None:
            self.doubts.broke(request.peer, detail, now)
            self.out.do(*self.peers.knock(request.peer, now))

    def _count(self, request: Request, event: WriteDone, now: float) -> None:
        """Count bytes that have landed; those before the forward's end are early."""
        request.sent_bytes += event.sent_bytes
        request.wire_s += event.wire_s
        early = event.sent_bytes if request.first is None else event.early_bytes
        request.early_bytes += early
        if request.peer is not None:
            self.doubts.worked(request.peer)
        self.out.count("sent_bytes", event.sent_bytes)
        self.out.count("early_bytes", early)
        self.recorder.note(request.key, "chunk sent", now, sent_bytes=event.sent_bytes)
        if event.transport and (tale := self.recorder.tale(request.key)) is not None:
            tale.facts["transport"] = event.transport
