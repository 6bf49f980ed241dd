"""How rooms of a prefill end: the client's leg at once, decode's when nothing of ours writes.

The first cause stays. FAILED is said to decode when no write is under way; pages are free when no
forward uses them either. Ends are remembered for those who ask later.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.engine.step import End
from daemons.prefill.commands import CallOffWrites
from daemons.prefill.decodes import Decodes
from daemons.prefill.memory import Memory
from daemons.prefill.outbox import Outbox
from daemons.prefill.request import Request
from daemons.prefill.stages import Stages
from daemons.protocol.causes import Failure
from daemons.protocol.handshake import Fence
from daemons.protocol.ids import PeerId
from daemons.runtime.recorder import Recorder
from daemons.runtime.tombstones import Tombstones


@dataclass(frozen=True, slots=True)
class Tomb:
    """How a room ended here, for those who ask later."""

    fence: Fence
    failure: Failure | None  # None: every byte landed
    peer: PeerId | None = None  # where it landed


@dataclass(slots=True)
class Ends:
    """The way out of every stage, and what is remembered of those who took it."""

    stages: Stages
    memory: Memory
    decodes: Decodes
    recorder: Recorder
    out: Outbox
    tombs: Tombstones[Tomb]

    def fail(self, request: Request, failure: Failure, now: float) -> None:
        """Note the first cause, tell our front, and wait for what is under way."""
        key = request.key
        if request.failure is None:
            request.failure = failure
            self.out.tell_failure(key, failure)
            self.stages.take_out(key)
            self.stages.ending[key] = request
            if request.unsettled:
                self.out.do(CallOffWrites(key))
        self.settle(request, now)

    def settle(self, request: Request, now: float) -> None:
        """End a failed room once no write is under way; its pages also wait for the forward."""
        key, failure = request.key, request.failure
        assert failure is not None
        if request.unsettled:
            return
        if self.tombs.get(key) is None:
            self.tombs.put(key, Tomb(request.fence, failure), now)
            if request.peer is not None and request.peer in self.decodes.known:
                self.out.final(request.peer, key, failure, request.fence, request.sent_bytes)
        if request.step_tokens:
            return
        if request.pages and request.first is None:
            self.out.do(End(key))
        del self.stages.ending[key]
        self.memory.release(request)
        self._close(request, failure, now)

    def succeed(self, request: Request, now: float) -> None:
        """End a room of which every byte has landed."""
        key = request.key
        assert request.peer is not None
        if (tale := self.recorder.tale(key)) is not None:
            tale.facts["wire_s"] = f"{request.wire_s:.6f}"
            if (share := request.overlap_fraction) is not None:
                tale.facts["overlap_fraction"] = f"{share:.3f}"
        self.stages.take_out(key)
        self.memory.release(request)
        self.out.final(request.peer, key, None, Fence.CLEAN, request.sent_bytes)
        self.out.tell_end(request)
        self.tombs.put(key, Tomb(Fence.CLEAN, None, request.peer), now)
        self._close(request, None, now)

    def _close(self, request: Request, failure: Failure | None, now: float) -> None:
        why = str(failure) if failure else "every byte landed"
        tale = self.recorder.leave(request.key, why, now, failure)
        tale.peer = request.peer_name
        self.out.close(request, failure, now)
