"""Steps of the engine: a forward over the next chunks of several rooms, one at a time."""

from __future__ import annotations

from dataclasses import dataclass

from daemons.engine.step import Begin, End, Result, Run, Sequence, StepDone, StepFailed
from daemons.prefill.ends import Ends
from daemons.prefill.hand_over import NOT_CARRIED_OUT, HandOver
from daemons.prefill.memory import Memory
from daemons.prefill.outbox import Outbox
from daemons.prefill.request import Request
from daemons.prefill.stages import Stages
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.status import Status
from daemons.runtime.recorder import Recorder


@dataclass(slots=True)
class EngineSteps:
    """What the engine is asked for, and answers."""

    stages: Stages
    memory: Memory
    hand_over: HandOver
    ends: Ends
    recorder: Recorder
    out: Outbox
    by_layer: bool  # pages leave while their chunk is computed
    is_under_way: bool = False
    last: int = 0  # the number of the last step

    def schedule(self, now: float) -> None:
        """Begin rooms that memory is there for, and ask for a forward when none is under way."""
        for request in self.stages.waiting.begin(self.memory):
            self._begin(request, now)
        if self.is_under_way:
            return
        items = self.stages.waiting.batch()
        if not items:
            return
        self.is_under_way = True
        self.last += 1
        self.out.do(Run(tuple(items), self.last))
        for item in items:
            request = self.stages.waiting.begun[item.key]
            request.step_tokens = len(item.tokens)
            if self.by_layer:
                self.hand_over.send(request, self.last)

    def done(self, event: StepDone, now: float) -> None:
        """Take a forward's results, one for each of its rooms."""
        self.is_under_way = False
        self.stages.waiting.moved(now)
        for result in event.results:
            self._computed(result, now)

    def failed(self, event: StepFailed, now: float) -> None:
        """A forward broke: so do its rooms, unless they had failed before."""
        self.is_under_way = False
        for key in event.keys:
            request = self.stages.ending.get(key) or self.stages.waiting.begun.get(key)
            if request is not None:
                request.step_tokens = 0
                self._fail(request, event.detail, now)

    def _begin(self, request: Request, now: float) -> None:
        request.since_s = now
        tale = self.recorder.enter(request.key, "forward", "memory was free", now)
        tale.cached_tokens = request.cached_tokens
        self.out.count("cache_lookups")
        self.out.count("cached_tokens", request.cached_tokens)
        self.out.progress(request, Status.WAITING_FOR_INPUT)  # the queue is behind it
        self.out.do(Begin(Sequence(request.key, request.submit.sampling, request.prompt)))
        self.hand_over.send(request)  # what is cached leaves before the forward

    def _computed(self, result: Result, now: float) -> None:
        stages = self.stages
        request = stages.ending.get(result.key) or stages.waiting.begun.get(result.key)
        if request is None:
            return
        chunk, request.step_tokens = request.step_tokens, 0
        if request.failure is not None:
            self.ends.settle(request, now)
            return
        if result.error:
            self._fail(request, result.error, now)
            return
        if request.is_skipped:
            self.hand_over.broke(request, NOT_CARRIED_OUT, now)
            return
        request.computed += chunk
        request.since_s = now
        request.prompt_logprobs.extend(result.prompt_logprobs)
        if request.computed == len(request.prompt):
            request.first = result.token
            if request.first is None:
                self._fail(request, "no token came out of the forward", now)
                return
        self.recorder.note(request.key, "chunk computed", now, tokens=chunk)
        self.out.count("prompt_tokens", chunk)
        if request.first is not None:
            self._complete(request, now)
        self.hand_over.send(request)

    def _complete(self, request: Request, now: float) -> None:
        """The prompt is computed: the first token is the client's, and the rest is on its way."""
        del self.stages.waiting.begun[request.key]
        self.stages.inflight.rooms[request.key] = request
        self.out.do(End(request.key))
        self.recorder.enter(request.key, "inflight", "prompt is computed", now)
        self.out.tell_first(request)
        self.memory.cache.keep(request)

    def _fail(self, request: Request, detail: str, now: float) -> None:
        failure = Failure(Cause.ENGINE_FAILED, "forward", self.out.me.instance, detail)
        self.ends.fail(request, failure, now)
