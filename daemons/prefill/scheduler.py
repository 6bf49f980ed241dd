"""The prefill core: events in, commands out, and nothing else.

A room waits for its destination (bootstrap), for memory and its turn (waiting), is computed by
chunks (forward), and ends when every byte has landed (inflight). FAILED is said to decode only
when nothing of ours can still write for the room; the client's leg is told at once.
"""

from __future__ import annotations

from daemons.engine.step import (
    Begin,
    End,
    Prepare,
    Prepared,
    Result,
    Run,
    Sequence,
    StepDone,
    StepFailed,
)
from daemons.prefill.bootstrap_queue import BootstrapQueue
from daemons.prefill.commands import Command, LearnBuffers
from daemons.prefill.config import PrefillConfig
from daemons.prefill.deadlines import overdue
from daemons.prefill.decodes import Decodes
from daemons.prefill.doubts import Doubts
from daemons.prefill.ends import Ends, Tomb
from daemons.prefill.events import Event, WriteDone, WriteFailed, WriteSkipped
from daemons.prefill.inflight_queue import InflightQueue, next_write
from daemons.prefill.memory import memory_of
from daemons.prefill.outbox import Outbox
from daemons.prefill.request import Request
from daemons.prefill.stages import STEPS, Stages
from daemons.prefill.waiting_queue import WaitingQueue
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import Submit
from daemons.protocol.handshake import (
    Abort,
    Destination,
    Fence,
    Heartbeat,
    Message,
    RegisterBuffers,
    RegistrationAnswer,
)
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.status import Status
from daemons.runtime.commands import Send
from daemons.runtime.events import (
    Cancelled,
    ConnectionLost,
    Draining,
    Finished,
    MessageCame,
    Probed,
    Stopping,
    Submitted,
    Tick,
)
from daemons.runtime.liveness import Liveness
from daemons.runtime.peers import Peers
from daemons.runtime.recorder import Recorder
from daemons.runtime.tombstones import Tombstones
from daemons.runtime.turns import put_in_turn, turn_of

PEERS_LIMIT = 200  # each costs some five file descriptors, of which a process may have 1024
EPOCH_AHEAD_S = 86400.0  # clocks differ; an epoch beyond that would bury all honest ones


class Scheduler:
    """The state of one prefill rank."""

    def __init__(self, me: PeerId, config: PrefillConfig, decodes: Decodes, pages: int) -> None:
        """``pages`` is the size of the engine's KV pool; ``decodes`` knows its window pool."""
        engine, timers = config.engine, config.timers
        self.me = me
        self.config = config
        self.decodes = decodes
        self.memory = memory_of(config, pages, decodes.window)
        self.rows, self.cache = self.memory.rows, self.memory.cache
        self.pages, self.window = self.cache.pages, self.cache.window
        self.peers = Peers(Liveness(timers.heartbeat_s, timers.peer_timeout_s))
        self.recorder = Recorder(me.instance, "prefill", STEPS)
        self.stages = Stages(
            BootstrapQueue(config.max_orphans),
            WaitingQueue(
                engine.page_size,
                engine.batch_tokens,
                engine.chunk_tokens,
                engine.batch_rooms,
                decodes.window,
            ),
            InflightQueue(),
        )
        self.doubts = Doubts()
        self.tombs: Tombstones[Tomb] = Tombstones(timers.tombstone_s)
        self.out = Outbox(me)
        self.ends = Ends(
            self.stages, self.memory, self.decodes, self.recorder, self.out, self.tombs
        )
        self.draining = False
        self._stepping = False
        self._steps = 0  # the number of the last forward
        self._now = 0.0

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event and return what is to be done, in order."""
        self._now = now
        match event:
            case Submitted():
                self._submitted(event.submit)
            case Cancelled():
                if request := self.stages.get(event.key):
                    self.ends.fail(request, event.failure, self._now)
            case Finished():
                pass  # a stop string in the only token changes nothing here
            case MessageCame():
                self._message(event.message)
            case Prepared():
                if request := self.stages.get(event.key):
                    request.is_ready = True
            case StepDone():
                self._stepping = False
                self.stages.waiting.moved(now)
                for result in event.results:
                    self._computed(result)
            case StepFailed():
                self._step_failed(event)
            case WriteDone() | WriteFailed() | WriteSkipped():
                self._written(event)
            case ConnectionLost():
                self.out.do(*self.peers.knock(event.peer, now))
            case Probed():
                if event.refused:
                    self._bury(event.peer, "its port refuses connections")
            case Draining():
                self.draining = event.on
            case Stopping():
                self._stop()
            case Tick():
                self._tick()
        self._schedule()
        return self.out.take()

    @property
    def counters(self) -> dict[str, float]:
        """Counts since the start, by name."""
        return self.out.counters | {"cache_evictions": self.cache.tree.evictions}

    @property
    def credits(self) -> dict[str, int]:
        """Return what another room may count on: tokens, rows and places; and who waits already."""
        places = self.stages.waiting.batch_rooms - len(self.stages.waiting.begun)
        return self.memory.credits(places, len(self.stages.waiting.rooms))

    @property
    def busy(self) -> bool:
        """Whether any room, orphan or write is left."""
        return bool(self.stages.rooms() or self.stages.ending or self.stages.bootstrap.orphans)

    # --- the two halves of a room -----------------------------------------------------------

    def _submitted(self, submit: Submit) -> None:
        key = RoomKey(submit.room, submit.attempt)
        if self.stages.get(key) or key in self.stages.ending:
            self.out.count("duplicate_rooms")  # the front answers 409; the first one goes on
            return
        if (tomb := self.tombs.get(key)) is not None:
            self.out.tell_failure(
                key, tomb.failure or Failure(Cause.REQUEST_DUPLICATE, "bootstrap")
            )
            return
        if (failure := self._refusal(submit)) is not None:
            self._refuse(key, failure)
            return
        tale = self.recorder.enter(key, "bootstrap", "request came", self._now)
        tale.prompt_tokens = len(submit.prompt)
        tale.facts.update(submit.names)
        turn = turn_of(self._now, submit.priority, self.config.ageing_s)
        request = Request(submit, key, self._now, self._now, turn=turn)
        if (grammar := submit.sampling.grammar) is not None:
            request.is_ready = False
            self.out.do(Prepare(key, grammar))
        self.stages.bootstrap.rooms[key] = request
        if (destination := self.stages.bootstrap.claim(key)) is not None:
            self._attach(request, destination)

    def _refusal(self, submit: Submit) -> Failure | None:
        me = self.me.instance
        if self.draining:
            return Failure(Cause.INSTANCE_DRAINING, "bootstrap", me)
        if not submit.prompt:
            return Failure(Cause.REQUEST_INVALID, "bootstrap", me, "the prompt is empty")
        if detail := self.memory.too_small(len(submit.prompt)):
            return Failure(Cause.REQUEST_TOO_LONG, "bootstrap", me, detail)
        if len(self.stages.rooms()) >= self.config.max_rooms:
            detail = f"{self.config.max_rooms} rooms are here already"
            return Failure(Cause.QUEUE_FULL, "bootstrap", me, detail)
        return None

    def _refuse(self, key: RoomKey, failure: Failure) -> None:
        self.out.tell_failure(key, failure)
        self.out.count("rooms_refused")
        self.tombs.put(key, Tomb(Fence.CLEAN, failure), self._now)
        if (destination := self.stages.bootstrap.claim(key)) is not None:
            self.out.refuse(destination, failure)

    def _destination(self, destination: Destination) -> None:
        key = RoomKey(destination.room, destination.attempt)
        if (tomb := self.tombs.get(key)) is not None:
            if tomb.failure is None and tomb.peer != destination.sender:
                self._refuse_twin(destination, tomb.peer)
            else:
                self.out.final(destination.sender, key, tomb.failure, tomb.fence)
        elif key in self.stages.ending:
            pass  # answered when its writes have ended
        elif (request := self.stages.get(key)) is not None:
            if request.destination is None:
                self._attach(request, destination)
            elif request.peer != destination.sender:
                self._refuse_twin(destination, request.peer)
            elif key in self.stages.waiting.rooms:  # what was said of it may be lost
                self.out.progress(request, Status.WAITING_FOR_INPUT)
        elif not self.stages.bootstrap.keep_orphan(key, destination, self._now):
            detail = f"{self.config.max_orphans} unclaimed rooms are waiting"
            self._refuse_stranger(
                destination, Failure(Cause.QUEUE_FULL, "bootstrap", self.me.instance, detail)
            )

    def _refuse_twin(self, destination: Destination, peer: PeerId | None) -> None:
        """Refuse a decode that wants a room which another one gets, or got."""
        detail = f"the room goes to {peer}"
        failure = Failure(Cause.REQUEST_DUPLICATE, "bootstrap", self.me.instance, detail)
        self.out.refuse(destination, failure)

    def _refuse_stranger(self, destination: Destination, failure: Failure) -> None:
        """Refuse a room whose request has not come; it is refused too if it comes yet."""
        key = RoomKey(destination.room, destination.attempt)
        if self.tombs.put_stranger(key, Tomb(Fence.CLEAN, failure), self._now):
            self.out.refuse(destination, failure)

    def _attach(self, request: Request, destination: Destination) -> None:
        request.destination = destination
        wrong = self.decodes.bad_destination(destination, request.prompt)
        if wrong:
            peer = destination.sender.instance
            self.ends.fail(
                request, Failure(Cause.HANDSHAKE_REFUSED, "bootstrap", peer, wrong), self._now
            )
            return
        if doubt := self.doubts.refusal(destination.sender, self._now):
            peer = destination.sender.instance
            self.ends.fail(
                request, Failure(Cause.TRANSFER_FAILED, "bootstrap", peer, doubt), self._now
            )
            return
        del self.stages.bootstrap.rooms[request.key]
        request.since_s = self._now
        put_in_turn(self.stages.waiting.rooms, request.key, request)
        self.recorder.enter(
            request.key, "waiting", "destination came", self._now, peer=request.peer_name
        )
        self.out.progress(request, Status.WAITING_FOR_INPUT)

    # --- the forward ------------------------------------------------------------------------

    def _schedule(self) -> None:
        for request in self.stages.waiting.begin(self.memory):
            request.since_s = self._now
            tale = self.recorder.enter(request.key, "forward", "memory was free", self._now)
            tale.cached_tokens = request.cached_tokens
            self.out.count("cache_lookups")
            self.out.count("cached_tokens", request.cached_tokens)
            self.out.progress(request, Status.WAITING_FOR_INPUT)  # the queue is behind it
            sequence = Sequence(request.key, request.submit.sampling, request.prompt)
            self.out.do(Begin(sequence))
            self._send(request)  # what is cached leaves before the forward
        if self._stepping:
            return
        items = self.stages.waiting.batch()
        if items:
            self._stepping = True
            self._steps += 1
            self.out.do(Run(tuple(items), self._steps))
            for item in items:
                request = self.stages.waiting.begun[item.key]
                request.step_tokens = len(item.tokens)
                if self.config.transfer.grain == "layer":
                    self._send(request, self._steps)

    def _computed(self, result: Result) -> None:
        request = self.stages.ending.get(result.key) or self.stages.waiting.begun.get(result.key)
        if request is None:
            return
        chunk, request.step_tokens = request.step_tokens, 0
        if request.failure is not None:
            self.ends.settle(request, self._now)
            return
        if result.error:
            me = self.me.instance
            self.ends.fail(
                request, Failure(Cause.ENGINE_FAILED, "forward", me, result.error), self._now
            )
            return
        if request.is_skipped:
            self._write_failed(request, "a write was not carried out")
            return
        request.computed += chunk
        request.since_s = self._now
        request.prompt_logprobs.extend(result.prompt_logprobs)
        if request.computed == len(request.prompt):
            request.first = result.token
            if request.first is None:
                me, detail = self.me.instance, "no token came out of the forward"
                self.ends.fail(
                    request, Failure(Cause.ENGINE_FAILED, "forward", me, detail), self._now
                )
                return
        self.recorder.note(request.key, "chunk computed", self._now, tokens=chunk)
        self.out.count("prompt_tokens", chunk)
        if request.first is not None:
            del self.stages.waiting.begun[request.key]
            self.stages.inflight.rooms[request.key] = request
            self.out.do(End(request.key))
            self.recorder.enter(request.key, "inflight", "prompt is computed", self._now)
            self.out.tell_first(request)
            self.cache.keep(request)
        self._send(request)

    def _send(self, request: Request, step: int = 0) -> None:
        page_size, pool = self.config.engine.page_size, self.decodes.window
        if (write := next_write(request, page_size, step, pool)) is not None:
            request.unsettled += 1
            self.out.do(write)

    def _step_failed(self, event: StepFailed) -> None:
        self._stepping = False
        failure = Failure(Cause.ENGINE_FAILED, "forward", self.me.instance, event.detail)
        for key in event.keys:
            request = self.stages.ending.get(key) or self.stages.waiting.begun.get(key)
            if request is not None:
                request.step_tokens = 0
                self.ends.fail(request, failure, self._now)

    # --- the bytes --------------------------------------------------------------------------

    def _written(self, event: WriteDone | WriteFailed | WriteSkipped) -> None:
        key = event.key
        request = self.stages.ending.get(key) or self.stages.get(key)
        if request is None:
            return
        request.unsettled -= 1
        request.since_s = self._now
        self.stages.inflight.lane_moved(request.peer, self._now)
        match event:
            case WriteDone():
                request.sent_bytes += event.sent_bytes
                early = event.sent_bytes if request.first is None else event.early_bytes
                request.early_bytes += early
                if request.peer is not None:
                    self.doubts.worked(request.peer)
                self.out.count("sent_bytes", event.sent_bytes)
                self.out.count("early_bytes", early)
                self.recorder.note(key, "chunk sent", self._now, sent_bytes=event.sent_bytes)
                if event.transport and (tale := self.recorder.tale(key)) is not None:
                    tale.facts["transport"] = event.transport
            case WriteFailed():
                request.fence = Fence.CUT if event.cut else request.fence
                self._write_failed(request, event.detail)
                return
            case WriteSkipped() if request.failure is None and request.step_tokens:
                request.is_skipped = True  # its forward broke, and will say so
                return
            case WriteSkipped() if request.failure is None:  # nobody called it off
                self._write_failed(request, "a write was not carried out")
                return
            case WriteSkipped():
                pass
        if request.failure is not None:
            self.ends.settle(request, self._now)
        elif key in self.stages.inflight.rooms and request.unsettled == 0:
            self.ends.succeed(request, self._now)
        else:
            self.out.progress(request, Status.TRANSFERRING)

    def _write_failed(self, request: Request, detail: str) -> None:
        stage = self.recorder.stage(request.key)
        self.ends.fail(
            request, Failure(Cause.TRANSFER_FAILED, stage, request.peer_name, detail), self._now
        )
        if request.peer is not None:
            self.doubts.broke(request.peer, detail, self._now)
            self.out.do(*self.peers.knock(request.peer, self._now))

    def _stop(self) -> None:
        self.draining = True
        for request in self.stages.rooms():
            stage = self.recorder.stage(request.key)
            self.ends.fail(
                request, Failure(Cause.INSTANCE_STOPPING, stage, self.me.instance), self._now
            )
        failure = Failure(Cause.INSTANCE_STOPPING, "bootstrap", self.me.instance)
        for orphan in self.stages.bootstrap.expired_orphans(self._now, 0.0):
            self._refuse_stranger(orphan, failure)

    # --- peers ------------------------------------------------------------------------------

    def _message(self, message: Message) -> None:
        self.peers.liveness.heard(message.sender, self._now)
        known = message.sender in self.decodes.known
        match message:
            case RegisterBuffers():
                self._register(message)
            case Destination() if known:
                self._destination(message)
            case Abort() if known:
                self._abort(message)
            case Heartbeat():
                pass
            case _:
                self.out.count("messages_from_strangers")

    def _register(self, buffers: RegisterBuffers) -> None:
        peer = buffers.sender
        if self.peers.liveness.is_buried(peer):
            return
        if peer not in self.peers.addresses and not self._is_welcome(peer):
            self.out.count("registrations_ignored")
            return
        refused = self.decodes.refusal(buffers)
        for older in [] if refused else self.peers.liveness.others_of(peer):
            self._bury(older, f"{peer.instance} lives on with epoch {peer.epoch}")
        self.out.do(*self.peers.add(peer, buffers.reply_host, buffers.reply_port, self._now))
        if refused:
            self.out.count("registrations_refused")
            self.out.log("peer.refused", peer=str(peer), reason=refused)
        elif peer not in self.decodes.known:
            self.decodes.known[peer] = buffers
            self.out.do(LearnBuffers(peer, buffers))
            self.out.log("peer.registered", peer=str(peer), pages=buffers.pages)
        self.out.do(Send(peer, RegistrationAnswer(self.me, peer.epoch, refused)))

    def _is_welcome(self, peer: PeerId) -> bool:
        """Say whether there is place for another peer, and its epoch can be a start of its."""
        is_past = peer.epoch / 1000 <= self._now + EPOCH_AHEAD_S
        return is_past and len(self.peers.addresses) < PEERS_LIMIT

    def _abort(self, abort: Abort) -> None:
        key = RoomKey(abort.room, abort.attempt)
        if (request := self.stages.get(key)) is not None:
            if request.peer not in (None, abort.sender):
                self.out.count("messages_from_strangers")
                return
            self.ends.fail(request, abort.failure, self._now)
        if key in self.stages.ending and self.tombs.get(key) is None:
            return  # told by the final progress when its writes have ended
        orphan = self.stages.bootstrap.orphans.get(key)
        if orphan is not None and orphan[0].sender == abort.sender:
            del self.stages.bootstrap.orphans[key]
        tomb = self.tombs.get(key)
        if tomb is None:
            tomb = Tomb(Fence.CLEAN, abort.failure)
            if not self.tombs.put_stranger(key, tomb, self._now):
                return  # it will be asked again
        self.out.answer(abort, tomb.fence)

    def _bury(self, peer: PeerId, evidence: str) -> None:
        if peer not in self.peers.addresses:
            return
        self.decodes.known.pop(peer, None)
        self.doubts.worked(peer)
        self.out.do(*self.peers.bury(peer))
        self.out.log("peer.died", peer=str(peer), evidence=evidence)
        for key, (destination, _) in list(self.stages.bootstrap.orphans.items()):
            if destination.sender == peer:
                del self.stages.bootstrap.orphans[key]
        self._fail_rooms_of(peer, Cause.PEER_DIED, evidence)

    def _fail_rooms_of(self, peer: PeerId, cause: Cause, detail: str) -> None:
        for request in self.stages.rooms():
            if request.peer == peer:
                stage = self.recorder.stage(request.key)
                self.ends.fail(request, Failure(cause, stage, peer.instance, detail), self._now)

    # --- time -------------------------------------------------------------------------------

    def _tick(self) -> None:
        timers, now = self.config.timers, self._now
        commands, silent = self.peers.tick(now)
        self.out.do(*commands)
        for peer in silent:
            if peer not in self.decodes.known:  # refused, and we hold nothing for it
                self.out.do(*self.peers.forget(peer))
                continue
            self._fail_rooms_of(
                peer, Cause.PEER_UNREACHABLE, f"no heartbeat for {timers.peer_timeout_s} s"
            )
        for orphan in self.stages.bootstrap.expired_orphans(now, timers.destination_s):
            detail = f"no request came within {timers.destination_s} s"
            failure = Failure(Cause.PEER_NEVER_CAME, "bootstrap", self.me.instance, detail)
            self._refuse_stranger(orphan, failure)
        for request in self.stages.rooms():
            stage, me = self.recorder.stage(request.key), self.me.instance
            if (late := overdue(request, stage, timers, me, now)) is not None:
                self.ends.fail(request, late, self._now)
        self.tombs.expire(now)
