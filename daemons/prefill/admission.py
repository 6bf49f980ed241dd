"""Admission to a prefill: the two halves of a room meet, or each is answered for itself.

Request, destination and abort come in any order. A room is complete when both halves are here and
fit; whoever comes too late, twice, or for nothing hears the end that is remembered. What only
others speak of is bounded in number and time.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.engine.step import Prepare
from daemons.prefill.config import PrefillConfig
from daemons.prefill.decodes import Decodes
from daemons.prefill.doubts import Doubts
from daemons.prefill.ends import Ends, Tomb
from daemons.prefill.memory import Memory
from daemons.prefill.outbox import Outbox
from daemons.prefill.request import Request
from daemons.prefill.stages import Stages
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import Submit
from daemons.protocol.handshake import Abort, Destination, Fence
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.status import Status
from daemons.runtime.recorder import Recorder
from daemons.runtime.turns import put_in_turn, turn_of


@dataclass(slots=True)
class Admission:
    """The door for both halves, and the way from bootstrap to waiting."""

    stages: Stages
    memory: Memory
    decodes: Decodes
    doubts: Doubts
    ends: Ends
    recorder: Recorder
    out: Outbox
    config: PrefillConfig  # nothing here depends on its timers, which a fault may change

    def submitted(self, submit: Submit, now: float, *, draining: bool) -> None:
        """Take a request in, or refuse it on both sides."""
        key = RoomKey(submit.room, submit.attempt)
        if self.stages.get(key) or key in self.stages.ending:
            self.out.count("duplicate_rooms")  # the front answers 409; the first one goes on
            return
        if (tomb := self.ends.tombs.get(key)) is not None:
            ended = tomb.failure or Failure(Cause.REQUEST_DUPLICATE, "bootstrap")
            self.out.tell_failure(key, ended)
            return
        if (failure := self._refusal(submit, draining=draining)) is not None:
            self._refuse(key, failure, now)
            return
        tale = self.recorder.enter(key, "bootstrap", "request came", now)
        tale.prompt_tokens = len(submit.prompt)
        tale.facts.update(submit.names)
        turn = turn_of(now, submit.priority, self.config.ageing_s)
        request = Request(submit, key, now, now, turn=turn)
        if (grammar := submit.sampling.grammar) is not None:
            request.is_ready = False
            self.out.do(Prepare(key, grammar))
        self.stages.bootstrap.rooms[key] = request
        if (destination := self.stages.bootstrap.claim(key)) is not None:
            self._attach(request, destination, now)

    def destination(self, destination: Destination, now: float) -> None:
        """Take where a room goes: join it with the request, keep it, or say how the room ended."""
        key = RoomKey(destination.room, destination.attempt)
        if (tomb := self.ends.tombs.get(key)) is not None:
            if tomb.failure is None and tomb.peer != destination.sender:
                self._refuse_twin(destination, tomb.peer)
            else:
                self.out.final(destination.sender, key, tomb.failure, tomb.fence)
        elif key in self.stages.ending:
            pass  # answered when its writes have ended
        elif (request := self.stages.get(key)) is not None:
            if request.destination is None:
                self._attach(request, destination, now)
            elif request.peer != destination.sender:
                self._refuse_twin(destination, request.peer)
            elif key in self.stages.waiting.rooms:  # what was said of it may be lost
                self.out.progress(request, Status.WAITING_FOR_INPUT)
        elif not self.stages.bootstrap.keep_orphan(key, destination, now):
            detail = f"{self.config.max_orphans} unclaimed rooms are waiting"
            self._refuse_stranger(destination, self._ours(Cause.QUEUE_FULL, detail), now)

    def abort(self, abort: Abort, now: float) -> None:
        """Decode gives a room up: answered when nothing of ours writes for it any more."""
        key, tombs, orphans = self._key_of(abort), self.ends.tombs, self.stages.bootstrap.orphans
        if (request := self.stages.get(key)) is not None:
            if request.peer not in (None, abort.sender):
                self.out.count("messages_from_strangers")
                return
            self.ends.fail(request, abort.failure, now)
        if key in self.stages.ending and tombs.get(key) is None:
            return  # told by the final progress when its writes have ended
        orphan = orphans.get(key)
        if orphan is not None and orphan[0].sender == abort.sender:
            del orphans[key]
        tomb = tombs.get(key)
        if tomb is None:
            tomb = Tomb(Fence.CLEAN, abort.failure)
            if not tombs.put_stranger(key, tomb, now):
                return  # it will be asked again
        self.out.answer(abort, tomb.fence)

    def give_up_orphans(self, keep_s: float, cause: Cause, detail: str, now: float) -> None:
        """Refuse destinations whose request has not come within ``keep_s``."""
        for orphan in self.stages.bootstrap.expired_orphans(now, keep_s):
            self._refuse_stranger(orphan, self._ours(cause, detail), now)

    def forget_orphans_of(self, peer: PeerId) -> None:
        """Let go what a decode that is dead has wanted."""
        orphans = self.stages.bootstrap.orphans
        for key, (destination, _) in list(orphans.items()):
            if destination.sender == peer:
                del orphans[key]

    def credits(self) -> dict[str, int]:
        """Return what another room may count on: tokens, rows and places; and who waits already."""
        waiting = self.stages.waiting
        return self.memory.credits(waiting.batch_rooms - len(waiting.begun), len(waiting.rooms))

    def _refusal(self, submit: Submit, *, draining: bool) -> Failure | None:
        if draining:
            return self._ours(Cause.INSTANCE_DRAINING)
        if not submit.prompt:
            return self._ours(Cause.REQUEST_INVALID, "the prompt is empty")
        if detail := self.memory.too_small(len(submit.prompt)):
            return self._ours(Cause.REQUEST_TOO_LONG, detail)
        if len(self.stages.rooms()) >= self.config.max_rooms:
            detail = f"{self.config.max_rooms} rooms are here already"
            return self._ours(Cause.QUEUE_FULL, detail)
        return None

    def _refuse(self, key: RoomKey, failure: Failure, now: float) -> None:
        self.out.tell_failure(key, failure)
        self.out.count("rooms_refused")
        self.ends.tombs.put(key, Tomb(Fence.CLEAN, failure), now)
        if (destination := self.stages.bootstrap.claim(key)) is not None:
            self.out.refuse(destination, failure)

    def _refuse_twin(self, destination: Destination, peer: PeerId | None) -> None:
        """Refuse a decode that wants a room which another one gets, or got."""
        failure = self._ours(Cause.REQUEST_DUPLICATE, f"the room goes to {peer}")
        self.out.refuse(destination, failure)

    def _refuse_stranger(self, destination: Destination, failure: Failure, now: float) -> None:
        """Refuse a room whose request has not come; it is refused too if it comes yet."""
        tomb = Tomb(Fence.CLEAN, failure)
        if self.ends.tombs.put_stranger(self._key_of(destination), tomb, now):
            self.out.refuse(destination, failure)

    def _attach(self, request: Request, destination: Destination, now: float) -> None:
        """Both halves are here: the room waits for its turn, unless they do not fit."""
        request.destination = destination
        peer = destination.sender.instance
        if wrong := self.decodes.bad_destination(destination, request.prompt):
            failure = Failure(Cause.HANDSHAKE_REFUSED, "bootstrap", peer, wrong)
            self.ends.fail(request, failure, now)
            return
        if doubt := self.doubts.refusal(destination.sender, now):
            failure = Failure(Cause.TRANSFER_FAILED, "bootstrap", peer, doubt)
            self.ends.fail(request, failure, now)
            return
        del self.stages.bootstrap.rooms[request.key]
        request.since_s = now
        put_in_turn(self.stages.waiting.rooms, request.key, request)
        self.recorder.enter(request.key, "waiting", "destination came", now, peer=peer)
        self.out.progress(request, Status.WAITING_FOR_INPUT)

    def _ours(self, cause: Cause, detail: str = "") -> Failure:
        return Failure(cause, "bootstrap", self.out.me.instance, detail)

    @staticmethod
    def _key_of(message: Destination | Abort) -> RoomKey:
        return RoomKey(message.room, message.attempt)
