"""The decode core: events in, commands out, and nothing else.

A room waits for its prefill and for memory (prealloc), for the bytes (transfer) or for its prompt
to be computed here (forward), for the next batch (prebuilt), and gets a token per step (running);
where pages are short its own are kept by the host for a while (retracted). Memory that was offered
to a writer comes back only through the writer's word or the proof of its death; the client's leg
ends at once.
"""

from __future__ import annotations

from daemons.decode.budget import Budget, budget_of
from daemons.decode.commands import Command, ZeroRow
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
from daemons.decode.request import Request
from daemons.decode.retracted_queue import RetractedQueue
from daemons.decode.retraction import Retraction
from daemons.decode.running_batch import RunningBatch
from daemons.decode.stages import STEPS, Stages
from daemons.decode.texts import Texts
from daemons.decode.transfer_queue import TransferQueue
from daemons.engine.step import (
    Begin,
    Kept,
    Prepare,
    Prepared,
    Restored,
    Sequence,
    StepDone,
    StepFailed,
)
from daemons.kv.runs import pages_for
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import RouteFailed, RouteFound, Submit
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
from daemons.runtime.turns import put_in_turn, turn_of


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
        self.memory = memory_of(config, pages, pool)
        self.pages, self.window = self.memory.pages, self.memory.window
        self.rows, self.cache = self.memory.rows, self.memory.cache
        self.peers = Peers(Liveness(timers.heartbeat_s, timers.peer_timeout_s))
        self.recorder = Recorder(me.instance, "decode", STEPS)
        self.prefills = Prefills(buffers, self.peers)
        self.deadlines = Deadlines(me.instance, self.prefills)
        self.stages = Stages(
            PreallocQueue(),
            TransferQueue(),
            ForwardQueue(engine, pool),
            Prebuilt(),
            RunningBatch(engine.page_size, engine.batch_rooms, pool),
            RetractedQueue(config.retract_tokens // engine.page_size, self.pages),
        )
        self.quarantine = Quarantine(timers.settle_s)
        self.out = Outbox(me)
        self.ends = Ends(
            self.stages, self.memory, self.quarantine, self.prefills, self.recorder, self.out
        )
        self.texts = Texts(self.stages, self.ends, self.recorder, self.out)
        self.hand_over = HandOver(
            self.stages,
            self.memory,
            self.ends,
            self.texts,
            self.peers.liveness,
            self.recorder,
            self.out,
        )
        self.retraction = Retraction(self.stages, self.memory, self.ends, self.recorder, self.out)
        self.steps = EngineSteps(
            self.stages,
            self.memory,
            self.retraction,
            self.texts,
            self.ends,
            self.recorder,
            self.out,
            engine.steps_ahead,
        )
        self.draining = False
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
                self.texts.finished(event.key, now)
            case RouteFound():
                self._found(event)
            case RouteFailed():
                self.prefills.not_found(event, now)
            case MessageCame():
                self._message(event.message)
            case ConnectionLost():
                self.out.do(*self.peers.knock(event.peer, now))
            case Probed():
                if event.refused:
                    self._bury(event.peer, "its port refuses connections")
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
                self._stop()
            case Tick():
                self._tick()
        self.ends.release_settled(now)
        self.retraction.resume()
        self._admit()
        self.steps.schedule(now)
        return self.out.take()

    @property
    def counters(self) -> dict[str, float]:
        """Counts since the start, by name."""
        return self.out.counters | {"cache_evictions": self.cache.tree.evictions}

    @property
    def credits(self) -> dict[str, int]:
        """Return what another room may count on: tokens, rows and places; and who waits already."""
        budget = self._budget()
        overcommit = max(0, budget.host_pages - budget.longest)
        free = self.pages.size + overcommit - budget.committed
        waiting = len(self.stages.prealloc.rooms) + len(self.stages.retracted.rooms)
        places = 2 * self.stages.running.batch_rooms - len(self.stages.holders())
        return {
            "tokens": max(0, free) * self.config.engine.page_size,
            "rows": self.rows.free,
            "places": self.memory.places(places),
            "queue": waiting,
        }

    @property
    def busy(self) -> bool:
        """Whether any room or quarantined memory is left."""
        return bool(self.stages.rooms() or self.stages.ending or self.quarantine.rooms)

    # --- prealloc ---------------------------------------------------------------------------

    def _submitted(self, submit: Submit) -> None:
        key = RoomKey(submit.room, submit.attempt)
        if self.stages.get(key) or key in self.stages.ending:
            self.out.count("duplicate_rooms")  # the front answers 409; the first one goes on
            return
        local = submit.prefill == self.me.instance
        tokens = len(submit.prompt) + submit.sampling.max_tokens - 1
        need = pages_for(tokens, self.config.engine.page_size)
        if (failure := self._refusal(submit, tokens)) is not None:
            self.out.count("rooms_refused")
            self.out.tell_failure(key, failure)
            self.ends.tell_prefill(submit, failure)
            return
        turn = turn_of(self._now, submit.priority, self.config.ageing_s)
        request = Request(submit, key, self._now, self._now, need, turn=turn, local=local)
        tale = self.recorder.enter(key, "prealloc", "request came", self._now, peer=request.prefill)
        tale.prompt_tokens = len(submit.prompt)
        tale.facts.update(submit.names)
        if (grammar := submit.sampling.grammar) is not None:
            request.is_ready = False
            self.out.do(Prepare(key, grammar))
        put_in_turn(self.stages.prealloc.rooms, key, request)

    def _refusal(self, submit: Submit, tokens: int) -> Failure | None:
        me, key = self.me.instance, RoomKey(submit.room, submit.attempt)
        if self.draining:
            return Failure(Cause.INSTANCE_DRAINING, "prealloc", me)
        if key in self.quarantine.rooms:
            return Failure(Cause.REQUEST_DUPLICATE, "prealloc", me, "its pages are in quarantine")
        if not submit.prompt:
            return Failure(Cause.REQUEST_INVALID, "prealloc", me, "the prompt is empty")
        if submit.prefill == me and not self.config.local_prefill:
            return Failure(Cause.REQUEST_INVALID, "prealloc", me, "local_prefill is not allowed")
        if detail := self.memory.too_small(tokens, local=submit.prefill == me):
            return Failure(Cause.REQUEST_TOO_LONG, "prealloc", me, detail)
        if len(self.stages.rooms()) >= self.config.max_rooms:
            detail = f"{self.config.max_rooms} rooms are here already"
            return Failure(Cause.QUEUE_FULL, "prealloc", me, detail)
        return None

    def _admit(self) -> None:
        for request in list(self.stages.prealloc.rooms.values()):
            if request.local:
                continue
            self.out.do(*self.prefills.need(request.submit.prefill, self._now))
            if (refusal := self.prefills.refusal(request.submit.prefill)) is not None:
                self.ends.fail(request, refusal, self._now)
        if not self.stages.prealloc.rooms or self.stages.retracted.rooms:
            return  # those that were here come first
        places = 2 * self.stages.running.batch_rooms - len(self.stages.holders())
        budget = self._budget()
        for request in self.stages.prealloc.admit(self.memory, budget, places, self.prefills):
            request.since_s = self._now
            cached = len(request.lease)
            pages = f"{len(request.pages) - cached} pages reserved, {cached} cached"
            self.out.count("cache_lookups")
            self.out.count("cached_tokens", cached * self.config.engine.page_size)
            if request.row is None:
                self.stages.forward.rooms[request.key] = request
                tale = self.recorder.enter(request.key, "forward", pages, self._now)
                tale.cached_tokens = request.computed
                submit, request.begun = request.submit, True
                self.out.do(Begin(Sequence(request.key, submit.sampling, submit.prompt)))
                continue
            self.stages.transfer.rooms[request.key] = request
            self.recorder.enter(request.key, "transfer", pages, self._now)
            self.out.do(ZeroRow(request.row))
            self.out.destination(request, self.config.engine.page_size)

    def _found(self, route: RouteFound) -> None:
        for older in self.peers.liveness.others_of(PeerId(route.instance, route.epoch, route.rank)):
            self._bury(older, f"{route.instance} lives on with epoch {route.epoch}")
        self.out.do(*self.prefills.found(route, self._now))

    def _budget(self) -> Budget:
        return budget_of(
            self.pages,
            self.config.engine.page_size,
            self.stages.retracted.host_pages,
            offered=self.stages.transfer.rooms.values(),
            ours=self.stages.ours(),
            leaving=self.stages.ending.values(),
            kept=self.stages.kept_pages,
        )

    def _stop(self) -> None:
        self.draining = True
        for request in self.stages.rooms():
            stage = self.recorder.stage(request.key)
            self.ends.fail(
                request, Failure(Cause.INSTANCE_STOPPING, stage, self.me.instance), self._now
            )

    # --- peers ------------------------------------------------------------------------------

    def _message(self, message: Message) -> None:
        if message.sender not in self.peers.addresses:
            self.out.count("messages_from_strangers")
            return
        self.peers.liveness.heard(message.sender, self._now)
        match message:
            case RegistrationAnswer():
                self.prefills.answered(message, self._now)
                if message.refused:
                    self.out.log("peer.refused", peer=str(message.sender), reason=message.refused)
            case Progress():
                self.hand_over.progress(message, self._now)
            case AbortAnswer():
                key = RoomKey(message.room, message.attempt)
                self.quarantine.answered(key, message.sender, message.fence, self._now)
            case Heartbeat():
                pass
            case _:
                self.out.count("messages_from_strangers")

    def _bury(self, peer: PeerId, evidence: str) -> None:
        if peer not in self.peers.addresses:
            return
        self.out.do(*self.prefills.bury(peer))
        self.out.log("peer.died", peer=str(peer), evidence=evidence)
        self.hand_over.doom(peer, Cause.PEER_DIED, evidence)
        self.quarantine.died(peer, self._now)

    # --- time -------------------------------------------------------------------------------

    def _tick(self) -> None:
        timers, now = self.config.timers, self._now
        commands, silent = self.peers.tick(now)
        self.out.do(*commands, *self.prefills.tick(now))
        for peer in silent:
            detail = f"no heartbeat for {timers.peer_timeout_s} s"
            self.hand_over.doom(peer, Cause.PEER_UNREACHABLE, detail)
        for request in self.stages.rooms():
            stage = self.recorder.stage(request.key)
            if (failure := self.deadlines.overdue(request, stage, timers, now)) is not None:
                self.ends.fail(request, failure, self._now)
        self.hand_over.tick(now)
        self.ends.ask_again(now)
