"""Admission to a decode: who may be here at all, and who gets memory, when, and where it is.

A room is refused at the door when it can never be served. Otherwise it waits for its prefill to be
known and for pages, and what it gets then is told to the writer, after its row was emptied.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.decode.budget import Budget, budget_of
from daemons.decode.commands import ZeroRow
from daemons.decode.config import DecodeConfig
from daemons.decode.ends import Ends
from daemons.decode.memory import Memory
from daemons.decode.outbox import Outbox
from daemons.decode.prefills import Prefills
from daemons.decode.request import Request
from daemons.decode.stages import Stages
from daemons.engine.step import Begin, Prepare, Sequence
from daemons.kv.runs import pages_for
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import Submit
from daemons.protocol.ids import RoomKey
from daemons.runtime.recorder import Recorder
from daemons.runtime.turns import put_in_turn, turn_of


@dataclass(slots=True)
class Admission:
    """The door, and the way from prealloc to the memory of a room."""

    stages: Stages
    memory: Memory
    prefills: Prefills
    ends: Ends
    recorder: Recorder
    out: Outbox
    config: DecodeConfig  # nothing here depends on its timers, which a fault may change

    def submitted(self, submit: Submit, now: float, *, draining: bool) -> None:
        """Take a request in, or refuse it on both sides."""
        key = RoomKey(submit.room, submit.attempt)
        if self.stages.get(key) or key in self.stages.ending:
            self.out.count("duplicate_rooms")  # the front answers 409; the first one goes on
            return
        local = submit.prefill == self.out.me.instance
        tokens = len(submit.prompt) + submit.sampling.max_tokens - 1
        need = pages_for(tokens, self.config.engine.page_size)
        if (failure := self._refusal(submit, tokens, draining=draining)) is not None:
            self.out.count("rooms_refused")
            self.out.tell_failure(key, failure)
            self.ends.tell_prefill(submit, failure)
            return
        turn = turn_of(now, submit.priority, self.config.ageing_s)
        request = Request(submit, key, now, now, need, turn=turn, local=local)
        tale = self.recorder.enter(key, "prealloc", "request came", now, peer=request.prefill)
        tale.prompt_tokens = len(submit.prompt)
        tale.facts.update(submit.names)
        if (grammar := submit.sampling.grammar) is not None:
            request.is_ready = False
            self.out.do(Prepare(key, grammar))
        put_in_turn(self.stages.prealloc.rooms, key, request)

    def admit(self, now: float) -> None:
        """Give memory to rooms whose turn it is; those whose prefill refuses us fail."""
        for request in list(self.stages.prealloc.rooms.values()):
            if request.local:
                continue
            self.out.do(*self.prefills.need(request.submit.prefill, now))
            if (refusal := self.prefills.refusal(request.submit.prefill)) is not None:
                self.ends.fail(request, refusal, now)
        if not self.stages.prealloc.rooms or self.stages.retracted.rooms:
            return  # those that were here come first
        places, budget = self._places(), self._budget()
        for request in self.stages.prealloc.admit(self.memory, budget, places, self.prefills):
            request.since_s = now
            cached = len(request.lease)
            pages = f"{len(request.pages) - cached} pages reserved, {cached} cached"
            self.out.count("cache_lookups")
            self.out.count("cached_tokens", cached * self.config.engine.page_size)
            if request.row is None:
                self._compute_here(request, pages, now)
            else:
                self._offer(request, request.row, pages, now)

    def credits(self) -> dict[str, int]:
        """Return what another room may count on: tokens, rows and places; and who waits already."""
        stages, memory, budget = self.stages, self.memory, self._budget()
        overcommit = max(0, budget.host_pages - budget.longest)
        free = memory.pages.size + overcommit - budget.committed
        return {
            "tokens": max(0, free) * self.config.engine.page_size,
            "rows": memory.rows.free,
            "places": memory.places(self._places()),
            "queue": len(stages.prealloc.rooms) + len(stages.retracted.rooms),
        }

    def _refusal(self, submit: Submit, tokens: int, *, draining: bool) -> Failure | None:
        me, key = self.out.me.instance, RoomKey(submit.room, submit.attempt)
        if draining:
            return Failure(Cause.INSTANCE_DRAINING, "prealloc", me)
        if key in self.ends.quarantine.rooms:
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

    def _compute_here(self, request: Request, pages: str, now: float) -> None:
        self.stages.forward.rooms[request.key] = request
        tale = self.recorder.enter(request.key, "forward", pages, now)
        tale.cached_tokens = request.computed
        submit, request.begun = request.submit, True
        self.out.do(Begin(Sequence(request.key, submit.sampling, submit.prompt)))

    def _offer(self, request: Request, row: int, pages: str, now: float) -> None:
        self.stages.transfer.rooms[request.key] = request
        self.recorder.enter(request.key, "transfer", pages, now)
        self.out.do(ZeroRow(row))
        self.out.destination(request, self.config.engine.page_size)

    def _places(self) -> int:
        """Return how many more rooms may have memory: a batch, and one that waits to join it."""
        return 2 * self.stages.running.batch_rooms - len(self.stages.holders())

    def _budget(self) -> Budget:
        return budget_of(
            self.memory.pages,
            self.config.engine.page_size,
            self.stages.retracted.host_pages,
            offered=self.stages.transfer.rooms.values(),
            ours=self.stages.ours(),
            leaving=self.stages.ending.values(),
            kept=self.stages.kept_pages,
        )
