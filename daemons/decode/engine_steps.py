"""Steps of the engine: who is in the next one, and what the last one has brought.

While nothing but tokens is wanted a second step waits behind the one that runs. What it brings for
a room that has ended meanwhile is not looked at, and the room's pages are its own until then.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.decode.ends import Ends
from daemons.decode.memory import Memory
from daemons.decode.outbox import Outbox
from daemons.decode.request import Request
from daemons.decode.retraction import Retraction
from daemons.decode.stages import Stages
from daemons.decode.texts import Texts
from daemons.engine.step import Result, Run, StepDone, StepFailed
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.ids import RoomKey
from daemons.runtime.recorder import Recorder

NO_TOKEN = "no token came out of the step"


@dataclass(slots=True)
class EngineSteps:
    """What the engine is asked for, and answers."""

    stages: Stages
    memory: Memory
    retraction: Retraction
    texts: Texts
    ends: Ends
    recorder: Recorder
    out: Outbox
    ahead: int  # steps that may wait behind another
    under_way: int = 0  # that the engine has not answered

    def schedule(self, now: float) -> None:
        """Ask for steps as long as there is something to do in them."""
        stages = self.stages
        while self.under_way == 0 or self._may_go_ahead():
            returning = stages.retracted.returning
            for request in stages.running.join(stages.prebuilt.rooms, returning):
                self.recorder.enter(request.key, "running", "joined the batch", now)
            is_ahead = self.under_way > 0
            if not is_ahead:
                self.retraction.make_room(now)
            items = stages.running.step(self.memory.pages, whole=is_ahead)
            items += stages.forward.step(len(items))
            if not items:
                return
            self.under_way += 1
            self.out.count("steps")
            self.out.do(Run(tuple(items)))

    def done(self, event: StepDone, now: float) -> None:
        """Take a step's results, one for each of its rooms."""
        self.under_way -= 1
        for result in event.results:
            self._stepped(result, now)

    def failed(self, event: StepFailed, now: float) -> None:
        """A step broke: so do its rooms, but for those that were over."""
        self.under_way -= 1
        for key in event.keys:
            request = self._answered(key)
            if request is None:
                continue
            if request.failure is not None or request.finished:
                self.ends.end(request, request.failure, now)
            else:
                self._fail(request, event.detail or NO_TOKEN, now)

    def _stepped(self, result: Result, now: float) -> None:
        request = self._answered(result.key)
        if request is None:
            return
        if request.failure is not None or request.finished:
            self.ends.end(request, request.failure, now)
        elif result.error:
            self._fail(request, result.error, now)
        elif request.chunk:  # of its prompt
            self._computed(request, result, now)
        elif result.token is None:
            self._fail(request, NO_TOKEN, now)
        else:
            self.texts.go_on(request, result.token, now)

    def _computed(self, request: Request, result: Result, now: float) -> None:
        """A chunk of a prompt is done here; the last one brings the first token."""
        key, chunk = request.key, self.stages.forward.computed(request, result, now)
        self.recorder.note(key, "chunk computed", now, tokens=chunk)
        self.out.count("prompt_tokens", chunk)
        if request.computed < len(request.submit.prompt):
            return
        if result.token is None:
            self._fail(request, NO_TOKEN, now)
            return
        del self.stages.forward.rooms[key]
        self.recorder.enter(key, "prebuilt", "prompt is computed", now)
        self.texts.begin(request, result.token, now, request.cached_tokens)

    def _may_go_ahead(self) -> bool:
        """Say whether a step may wait behind another: nobody is to leave, no prompt is computed."""
        calm = not self.stages.forward.rooms and not self.retraction.asked
        return calm and self.under_way <= self.ahead

    def _answered(self, key: RoomKey) -> Request | None:
        """Return a room that the engine has answered about, and count the answer."""
        stages = self.stages
        request = stages.running.rooms.get(key)
        if request is None:
            request = stages.ending.get(key) or stages.forward.rooms.get(key)
        if request is not None:
            request.in_steps -= 1
        return request

    def _fail(self, request: Request, detail: str, now: float) -> None:
        stage, me = self.recorder.stage(request.key), self.out.me.instance
        self.ends.fail(request, Failure(Cause.ENGINE_FAILED, stage, me, detail), now)
