"""The prefill core: events in, commands out, and nothing else.

A room waits for its destination (bootstrap), for memory and its turn (waiting), is computed by
chunks (forward), and ends when every byte has landed (inflight). FAILED is said to decode only
when nothing of ours can still write for the room; the client's leg is told at once.

Here is which event goes where. What happens then is in the modules beside this one, composed
below: each knows those that were made before it, and none knows the scheduler.
"""

from __future__ import annotations

from daemons.engine.step import Prepared, StepDone, StepFailed
from daemons.prefill.admission import Admission
from daemons.prefill.bootstrap_queue import BootstrapQueue
from daemons.prefill.commands import Command, LearnBuffers
from daemons.prefill.config import PrefillConfig
from daemons.prefill.deadlines import overdue
from daemons.prefill.decodes import Decodes
from daemons.prefill.doubts import Doubts
from daemons.prefill.ends import Ends, Tomb
from daemons.prefill.engine_steps import EngineSteps
from daemons.prefill.events import Event, WriteDone, WriteFailed, WriteSkipped
from daemons.prefill.hand_over import HandOver
from daemons.prefill.inflight_queue import InflightQueue
from daemons.prefill.memory import memory_of
from daemons.prefill.outbox import Outbox
from daemons.prefill.stages import STEPS, Stages
from daemons.prefill.waiting_queue import WaitingQueue
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.handshake import (
    Abort,
    Destination,
    Heartbeat,
    Message,
    RegisterBuffers,
    RegistrationAnswer,
)
from daemons.protocol.ids import PeerId
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

PEERS_LIMIT = 200  # each costs some five file descriptors, of which a process may have 1024
EPOCH_AHEAD_S = 86400.0  # clocks differ; an epoch beyond that would bury all honest ones


class Scheduler:
    """The state of one prefill rank."""

    def __init__(self, me: PeerId, config: PrefillConfig, decodes: Decodes, pages: int) -> None:
        """``pages`` is the size of the engine's KV pool; ``decodes`` knows its window pool."""
        engine, timers = config.engine, config.timers
        self.me = me
        self.config = config
        self.draining = False
        self.out = out = Outbox(me)
        self.recorder = recorder = Recorder(me.instance, "prefill", STEPS)
        self.memory = memory = memory_of(config, pages, decodes.window)
        self.rows, self.cache = memory.rows, memory.cache
        self.pages, self.window = self.cache.pages, self.cache.window
        self.peers = Peers(Liveness(timers.heartbeat_s, timers.peer_timeout_s))
        self.decodes = decodes
        self.doubts = doubts = Doubts()
        self.tombs: Tombstones[Tomb] = Tombstones(timers.tombstone_s)
        self.stages = stages = Stages(
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
        self.ends = ends = Ends(stages, memory, decodes, recorder, out, self.tombs)
        self.admission = Admission(stages, memory, decodes, doubts, ends, recorder, out, config)
        self.hand_over = HandOver(
            stages, ends, doubts, self.peers, recorder, out, engine.page_size, decodes.window
        )
        self.steps = EngineSteps(
            stages, memory, self.hand_over, ends, recorder, out, config.transfer.grain == "layer"
        )

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event and return what is to be done, in order."""
        match event:
            case Submitted():
                self.admission.submitted(event.submit, now, draining=self.draining)
            case Cancelled():
                if request := self.stages.get(event.key):
                    self.ends.fail(request, event.failure, now)
            case Finished():
                pass  # a stop string in the only token changes nothing here
            case MessageCame():
                self._message(event.message, now)
            case Prepared():
                if request := self.stages.get(event.key):
                    request.is_ready = True
            case StepDone():
                self.steps.done(event, now)
            case StepFailed():
                self.steps.failed(event, now)
            case WriteDone() | WriteFailed() | WriteSkipped():
                self.hand_over.written(event, now)
            case ConnectionLost():
                self.out.do(*self.peers.knock(event.peer, now))
            case Probed():
                if event.refused:
                    self._bury(event.peer, "its port refuses connections", now)
            case Draining():
                self.draining = event.on
            case Stopping():
                self._stop(now)
            case Tick():
                self._tick(now)
        self.steps.schedule(now)
        return self.out.take()

    @property
    def counters(self) -> dict[str, float]:
        """Counts since the start, by name."""
        return self.out.counters | {"cache_evictions": self.cache.tree.evictions}

    @property
    def credits(self) -> dict[str, int]:
        """Return what another room may count on: tokens, rows and places; and who waits already."""
        return self.admission.credits()

    @property
    def busy(self) -> bool:
        """Whether any room, orphan or write is left."""
        stages = self.stages
        return bool(stages.rooms() or stages.ending or stages.bootstrap.orphans)

    def _stop(self, now: float) -> None:
        self.draining = True
        for request in self.stages.rooms():
            stage = self.recorder.stage(request.key)
            failure = Failure(Cause.INSTANCE_STOPPING, stage, self.me.instance)
            self.ends.fail(request, failure, now)
        self.admission.give_up_orphans(0.0, Cause.INSTANCE_STOPPING, "", now)

    def _tick(self, now: float) -> None:
        timers, me = self.config.timers, self.me.instance
        commands, silent = self.peers.tick(now)
        self.out.do(*commands)
        for peer in silent:
            self._fell_silent(peer, f"no heartbeat for {timers.peer_timeout_s} s", now)
        detail = f"no request came within {timers.destination_s} s"
        self.admission.give_up_orphans(timers.destination_s, Cause.PEER_NEVER_CAME, detail, now)
        for request in self.stages.rooms():
            stage = self.recorder.stage(request.key)
            if (failure := overdue(request, stage, timers, me, now)) is not None:
                self.ends.fail(request, failure, now)
        self.tombs.expire(now)

    # --- peers ------------------------------------------------------------------------------

    def _message(self, message: Message, now: float) -> None:
        self.peers.liveness.heard(message.sender, now)
        known = message.sender in self.decodes.known
        match message:
            case RegisterBuffers():
                self._register(message, now)
            case Destination() if known:
                self.admission.destination(message, now)
            case Abort() if known:
                self.admission.abort(message, now)
            case Heartbeat():
                pass
            case _:
                self.out.count("messages_from_strangers")

    def _register(self, buffers: RegisterBuffers, now: float) -> None:
        """Learn, or refuse, a decode's memory; a life beside the one that registers is over."""
        peer = buffers.sender
        if self.peers.liveness.is_buried(peer):
            return
        if peer not in self.peers.addresses and not self._is_welcome(peer, now):
            self.out.count("registrations_ignored")
            return
        refused = self.decodes.refusal(buffers)
        for older in [] if refused else self.peers.liveness.others_of(peer):
            self._bury(older, f"{peer.instance} lives on with epoch {peer.epoch}", now)
        self.out.do(*self.peers.add(peer, buffers.reply_host, buffers.reply_port, now))
        if refused:
            self.out.count("registrations_refused")
            self.out.log("peer.refused", peer=str(peer), reason=refused)
        elif peer not in self.decodes.known:
            self.decodes.known[peer] = buffers
            self.out.do(LearnBuffers(peer, buffers))
            self.out.log("peer.registered", peer=str(peer), pages=buffers.pages)
        self.out.do(Send(peer, RegistrationAnswer(self.me, peer.epoch, refused)))

    def _is_welcome(self, peer: PeerId, now: float) -> bool:
        """Say whether there is place for another peer, and its epoch can be a start of its."""
        is_past = peer.epoch / 1000 <= now + EPOCH_AHEAD_S
        return is_past and len(self.peers.addresses) < PEERS_LIMIT

    def _bury(self, peer: PeerId, evidence: str, now: float) -> None:
        """A decode is proven dead: its rooms fail, and nothing binds us to it."""
        if peer not in self.peers.addresses:
            return
        self.decodes.known.pop(peer, None)
        self.doubts.worked(peer)
        self.out.do(*self.peers.bury(peer))
        self.out.log("peer.died", peer=str(peer), evidence=evidence)
        self.admission.forget_orphans_of(peer)
        self._fail_rooms_of(peer, Cause.PEER_DIED, evidence, now)

    def _fell_silent(self, peer: PeerId, detail: str, now: float) -> None:
        """A decode may be dead: its rooms fail, but it may come back; a refused one is let go."""
        if peer in self.decodes.known:
            self._fail_rooms_of(peer, Cause.PEER_UNREACHABLE, detail, now)
        else:
            self.out.do(*self.peers.forget(peer))

    def _fail_rooms_of(self, peer: PeerId, cause: Cause, detail: str, now: float) -> None:
        for request in self.stages.rooms():
            if request.peer == peer:
                stage = self.recorder.stage(request.key)
                self.ends.fail(request, Failure(cause, stage, peer.instance, detail), now)
