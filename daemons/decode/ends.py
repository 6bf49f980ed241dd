"""How rooms of a decode end: the client's leg at once, their memory when nobody uses it any more.

Our own pages are free when the engine is done with them. What a writer was offered goes into
quarantine, and comes back through the writer's word or the proof of its death.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.decode.memory import Memory
from daemons.decode.outbox import Outbox
from daemons.decode.prefills import Prefills
from daemons.decode.quarantine import Quarantine
from daemons.decode.request import Request
from daemons.decode.stages import Stages
from daemons.engine.step import End
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import Submit
from daemons.protocol.handshake import Fence
from daemons.protocol.ids import RoomKey
from daemons.protocol.status import Status
from daemons.runtime.liveness import Life
from daemons.runtime.recorder import Recorder


@dataclass(slots=True)
class Ends:
    """The way out of every stage."""

    stages: Stages
    memory: Memory
    quarantine: Quarantine
    prefills: Prefills
    recorder: Recorder
    out: Outbox

    def fail(
        self, request: Request, failure: Failure, now: float, fence: Fence | None = None
    ) -> None:
        """End a room badly; ``fence`` is the writer's word when it has given it already."""
        key = request.key
        self.out.tell_failure(key, failure)
        if key in self.stages.transfer.rooms:
            self._isolate(request, failure, now, fence)
        elif key in self.stages.prealloc.rooms:
            self.tell_prefill(request.submit, failure)
        self.end(request, failure, now)

    def tell_prefill(self, submit: Submit, failure: Failure) -> None:
        """Tell prefill once, if we know it, not to wait for a room that has no destination."""
        if (peer := self.prefills.ready(submit.prefill)) is not None:
            self.out.abort(peer, RoomKey(submit.room, submit.attempt), failure)

    def end(self, request: Request, failure: Failure | None, now: float) -> None:
        """Take a room out; its own pages are free once the engine is done with them."""
        key = request.key
        self.stages.take_out(key)
        if request.in_steps:
            request.failure = failure
            request.finished = failure is None
            self.stages.ending[key] = request
            return
        self.stages.ending.pop(key, None)
        whole = self.recorder.stage(key) in ("prebuilt", "running")
        sound = failure is None or failure.cause is not Cause.ENGINE_FAILED
        self.memory.end(request, keep=whole and sound)
        if request.begun:
            self.out.do(End(key))
        why = str(failure) if failure else "text ended"
        tale = self.recorder.leave(key, why, now, failure)
        tale.output_tokens = len(request.output)
        self.out.close(request, failure, now)

    def release_settled(self, now: float) -> None:
        """Make free what no writer writes any more."""
        for key, held in self.quarantine.settled(now):
            self.memory.settle(key, held)
            self.out.count("quarantines_ended")

    def ask_again(self, now: float) -> None:
        """Ask the writers that have not said that they are done; a silent one may be another now.

        The look-up of a silent one may find a newer life, which is the proof of its death.
        """
        for key, held in self.quarantine.unanswered(now):
            self.out.abort(held.peer, key, held.failure)
            if self.prefills.peers.liveness.life(held.peer) is Life.SUSPECT:
                self.out.do(*self.prefills.need(held.peer.instance, now))

    def _isolate(self, request: Request, failure: Failure, now: float, fence: Fence | None) -> None:
        """Put what a writer may still write into quarantine, and ask the writer."""
        assert request.peer is not None
        key, peer = request.key, request.peer
        self.quarantine.rooms[key] = self.memory.isolate(request, failure, now)
        if request.status is Status.SUCCESS:
            fence = Fence.CLEAN
        if fence is not None:
            self.quarantine.answered(key, peer, fence, now)
        elif peer in self.prefills.peers.addresses:
            self.out.abort(peer, key, failure)
        else:  # the dead are not asked
            self.quarantine.died(peer, now)
