"""The decode core: events in, commands out, and nothing else.

A room waits for its prefill and for memory (prealloc), for the bytes (transfer) or for its prompt
to be computed here (forward), for the next batch (prebuilt), and gets a token per step (running);
where pages are short its own are kept by the host for a while (retracted). Memory that was offered
to a writer comes back only through the writer's word or the proof of its death; the client's leg
ends at once.

Here is which event goes where. What happens then is in the modules beside this one, composed
below: each knows those that were made before it, and none knows the scheduler.
"""

from __future__ import annotations

from daemons.decode.admission import Admission
from daemons.decode.commands import Command
from daemons.decode.config import DecodeConfig
from daemons.decode.deadlines import Deadlines
from daemons.decode.ends import Ends
from daemons.decode.engine_steps import EngineSteps
from daemons.decode.events import Event, Retract, RowRead, SumsVerified
from daemons.decode.forward_queue import ForwardQueue
from daemons.decode.hand_over import HandOver
from daemons.decode.memory import memory_of
from daemons.decode.outbox import Outbox
from daemons.decode.prealloc_queue import PreallocQueue
from daemons.decode.prebuilt import Prebuilt
from daemons.decode.prefills import Prefills
from daemons.decode.quarantine import Quarantine
from daemons.decode.retracted_queue import RetractedQueue
from daemons.decode.retraction import Retraction
from daemons.decode.running_batch import RunningBatch
from daemons.decode.stages import STEPS, Stages
from daemons.decode.texts import Texts
from daemons.decode.transfer_queue import TransferQueue
from daemons.engine.step import Kept, Prepared, Restored, StepDone, StepFailed
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import RouteFailed, RouteFound
from daemons.protocol.handshake import (
    AbortAnswer,
    Heartbeat,
    Message,
    Progress,
    RegisterBuffers,
    RegistrationAnswer,
)
from daemons.protocol.ids import PeerId, RoomKey
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


class Scheduler:
    """The state of one decode rank."""

    def __init__(
        self,
        me: PeerId,
        config: DecodeConfig,
        buffers: RegisterBuffers,
        pages: int,
        pool: WindowPool = NO_POOL,
    ) -> None:
        """``buffers`` is our memory as prefills are told of it; ``pages`` the KV pool's size.

        ``pool`` is that of layers with a window.
        """
        engine, timers = config.engine, config.timers
        self.me = me
        self.config = config
        self.draining = False
        self.out = out = Outbox(me)
        self.recorder = recorder = Recorder(me.instance, "decode", STEPS)
        self.memory = memory = memory_of(config, pages, pool)
        self.pages, self.window, self.rows = memory.pages, memory.window, memory.rows
        self.cache = memory.cache
        self.peers = Peers(Liveness(timers.heartbeat_s, timers.peer_timeout_s))
        self.prefills = prefills = Prefills(buffers, self.peers)
        self.quarantine = Quarantine(timers.settle_s)
        self.deadlines = Deadlines(me.instance, prefills)
        self.stages = stages = Stages(
            PreallocQueue(),
            TransferQueue(),
            ForwardQueue(engine, pool),
            Prebuilt(),
            RunningBatch(engine.page_size, engine.batch_rooms, pool),
            RetractedQueue(config.retract_tokens // engine.page_size, memory.pages),
        )
        self.ends = ends = Ends(stages, memory, self.quarantine, prefills, recorder, out)
        self.admission = Admission(stages, memory, prefills, ends, recorder, out, config)
        self.texts = texts = Texts(stages, ends, recorder, out)
        self.hand_over = HandOver(
            stages,
            memory,
            ends,
            texts,
            self.peers.liveness,
            recorder,
            out,
            config.transfer.checksum,
        )
        self.retraction = Retraction(stages, memory, ends, recorder, out)
        self.steps = EngineSteps(
            stages, memory, self.retraction, texts, ends, recorder, out, engine.steps_ahead
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
                self.texts.finished(event.key, now)
            case RouteFound():
                self._found(event, now)
            case RouteFailed():
                self.prefills.not_found(event, now)
            case MessageCame():
                self._message(event.message, now)
            case ConnectionLost():
                self.out.do(*self.peers.knock(event.peer, now))
            case Probed():
                if event.refused:
                    self._bury(event.peer, "its port refuses connections", now)
            case RowRead():
                self.hand_over.row_read(event, now)
            case SumsVerified():
                self.hand_over.verified(event, now)
            case Prepared():
                if request := self.stages.get(event.key):
                    request.is_ready = True
            case StepDone():
                self.steps.done(event, now)
            case StepFailed():
                self.steps.failed(event, now)
            case Kept():
                self.retraction.kept(event, now)
            case Restored():
                self.retraction.restored(event, now)
            case Retract():
                self.retraction.asked.add(event.key)
            case Draining():
                self.draining = event.on
            case Stopping():
                self._stop(now)
            case Tick():
                self._tick(now)
        self.ends.release_settled(now)
        self.retraction.resume()
        self.admission.admit(now)
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
        """Whether any room or quarantined memory is left."""
        return bool(self.stages.rooms() or self.stages.ending or self.quarantine.rooms)

    def _stop(self, now: float) -> None:
        self.draining = True
        for request in self.stages.rooms():
            stage = self.recorder.stage(request.key)
            failure = Failure(Cause.INSTANCE_STOPPING, stage, self.me.instance)
            self.ends.fail(request, failure, now)

    def _tick(self, now: float) -> None:
        timers = self.config.timers
        commands, silent = self.peers.tick(now)
        self.out.do(*commands, *self.prefills.tick(now))
        for peer in silent:
            detail = f"no heartbeat for {timers.peer_timeout_s} s"
            self.hand_over.doom(peer, Cause.PEER_UNREACHABLE, detail)
        for request in self.stages.rooms():
            stage = self.recorder.stage(request.key)
            if (failure := self.deadlines.overdue(request, stage, timers, now)) is not None:
                self.ends.fail(request, failure, now)
        self.hand_over.tick(now)
        self.ends.ask_again(now)

    # --- peers ------------------------------------------------------------------------------

    def _message(self, message: Message, now: float) -> None:
        if message.sender not in self.peers.addresses:
            self.out.count("messages_from_strangers")
            return
        self.peers.liveness.heard(message.sender, now)
        match message:
            case RegistrationAnswer():
                self.prefills.answered(message, now)
                if message.refused:
                    self.out.log("peer.refused", peer=str(message.sender), reason=message.refused)
            case Progress():
                self.hand_over.progress(message, now)
            case AbortAnswer():
                key = RoomKey(message.room, message.attempt)
                self.quarantine.answered(key, message.sender, message.fence, now)
            case Heartbeat():
                pass
            case _:
                self.out.count("messages_from_strangers")

    def _found(self, route: RouteFound, now: float) -> None:
        """Take a look-up's answer; a life beside the one that it names is over."""
        for older in self.peers.liveness.others_of(PeerId(route.instance, route.epoch, route.rank)):
            self._bury(older, f"{route.instance} lives on with epoch {route.epoch}", now)
        self.out.do(*self.prefills.found(route, now))

    def _bury(self, peer: PeerId, evidence: str, now: float) -> None:
        """A prefill is proven dead: what it has not finished fails, what it wrote settles."""
        if peer not in self.peers.addresses:
            return
        self.out.do(*self.prefills.bury(peer))
        self.out.log("peer.died", peer=str(peer), evidence=evidence)
        self.hand_over.doom(peer, Cause.PEER_DIED, evidence)
        self.quarantine.died(peer, now)
