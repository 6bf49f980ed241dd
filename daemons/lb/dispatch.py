"""One request over two legs: posted at once, ended together, told by the first cause.

- Both legs get the same bytes. Decode's answer is the client's; of prefill's only its prompt
  log-probabilities are, and its first token where a stream begins with it (see ``seam``).
- The first failure of either leg ends both. Where a connection merely broke, the other leg has a
  second to tell what it knows, for the survivor may name stage and cause.
- Nothing is said to the client before the first event or decode's whole answer is here.
- Once decode has ended well, prefill's leg matters no more; once decode has begun to answer, a
  *broken* connection to prefill does not either, for decode begins only when all is handed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from daemons.lb import merge
from daemons.lb.fleet import Life, Worker
from daemons.lb.leg import EVENT_END, Answer, Leg, LegFailed
from daemons.lb.order import Order
from daemons.lb.seam import Seam, SeamBroken
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.topology import Role

EXPLAIN_S = 1.0  # how long a broken leg waits for the other one's explanation
LINGER_S = 2.0  # how long prefill's leg may outlive a good answer of decode
SECOND_HAND = frozenset(
    {Cause.LB_TWIN_FAILED, Cause.PEER_ABORTED, Cause.CLIENT_DISCONNECTED, Cause.CLIENT_CANCELLED}
)  # causes that only tell of another one

PREFILL, DECODE = Role.PREFILL.value, Role.DECODE.value
Task = asyncio.Task[Answer]


class ClientGone(Exception):
    """The client's connection is closed: nobody reads the answer."""


class Downstream(Protocol):
    """The client's end of a stream; both verbs raise ClientGone."""

    async def begin(self) -> None:
        """Send the head of an event stream."""
        ...

    async def send(self, events: bytes) -> None:
        """Send complete events."""
        ...


@dataclass(slots=True)
class Lingering:
    """Legs of prefill that outlive a good answer for a moment, so that they end well too."""

    tasks: set[Task] = field(default_factory=set)

    def hold(self, task: Task) -> None:
        """Let ``task`` end by itself within ``LINGER_S``."""
        timer = asyncio.get_running_loop().call_later(LINGER_S, task.cancel)
        self.tasks.add(task)

        def let_go(ended: Task) -> None:
            timer.cancel()
            self.tasks.discard(ended)
            _failure(ended)  # nobody else reads it

        task.add_done_callback(let_go)

    async def close(self) -> None:
        """End those that are left."""
        await _end(*self.tasks)


@dataclass(slots=True)
class Exchange:
    """The two legs of one order."""

    order: Order
    prefill: Leg | None  # None: decode computes the prompt by itself
    decode: Leg
    downstream: Downstream
    total_s: float
    prefill_ended: Callable[[Task], None]  # called once, however it ended
    linger: Callable[[Task], None]  # takes over prefill's leg when decode ended first, and well
    seam: Seam | None = None  # None: prefill's first token does not go out
    first_token: Callable[[str], None] = lambda _: None  # told when a leg's first event is here
    began: bool = False  # the client has our head
    prefill_is_done: bool = False  # its leg has ended well before :meth:`run`
    begun: set[str] = field(default_factory=set)  # legs whose first event is here
    lost: dict[Life, LegFailed] = field(default_factory=dict)  # legs that were given up
    tasks: dict[Life, Task] = field(default_factory=dict)
    sending: asyncio.Lock | None = None  # two legs, one client
    gathered: merge.Gathered | None = None
    patch: merge.Patch | None = None
    culprit: Worker | None = None  # whose leg told of the failure, or broke

    async def run(self) -> Answer:
        """Return decode's answer (empty when it went out as events).

        Raises:
            LegFailed: the first cause.
            ClientGone: nobody reads it.
        """
        if self.prefill is None:
            return await self._alone(self.decode)
        if self.prefill_is_done:
            prefill = asyncio.create_task(_nothing(), name="leg.prefill")
        else:
            prefill = self._started(self.prefill, self.prefill.run(self._gather))
            prefill.add_done_callback(self.prefill_ended)
        decode = self._started(self.decode, self._answer(prefill))
        try:
            async with asyncio.timeout(self.total_s):
                await self._settle(prefill, decode)
        except BaseException as error:
            await _end(prefill, decode)
            if isinstance(error, TimeoutError):
                raise LegFailed(self._too_late()) from None
            raise
        if not prefill.done():
            self.linger(prefill)
        return decode.result()

    def lose(self, worker: Worker, detail: str) -> None:
        """Give the leg of ``worker`` up: it is known not to answer."""
        task = self.tasks.get(worker.life)
        if task is not None and task.done():
            return
        failure = Failure(Cause.LB_WORKER_GONE, self.stage, worker.name, detail)
        self.lost[worker.life] = LegFailed(failure)
        if task is not None:
            task.cancel()

    def _started(self, leg: Leg, running: Coroutine[Any, Any, Answer]) -> Task:
        life = leg.worker.life

        async def run() -> Answer:
            if (lost := self.lost.get(life)) is not None:
                running.close()
                raise lost
            try:
                return await running
            except asyncio.CancelledError:
                if (lost := self.lost.get(life)) is not None:
                    raise lost from None
                raise

        task = asyncio.create_task(run(), name=f"leg.{leg.worker.role.value}")
        task.add_done_callback(lambda _: leg.drop())  # also where it never began
        self.tasks[life] = task
        return task

    async def _alone(self, decode: Leg) -> Answer:
        """Run the only leg."""
        try:
            async with asyncio.timeout(self.total_s):
                return await self._started(decode, decode.run(self._of_decode))
        except TimeoutError:
            raise LegFailed(self._too_late()) from None
        except LegFailed:
            self.culprit = decode.worker
            raise

    async def _settle(self, prefill: Task, decode: Task) -> None:
        """Return when decode has ended well; raise the first cause otherwise."""
        await asyncio.wait({prefill, decode}, return_when=asyncio.FIRST_COMPLETED)
        if not decode.done() and _failure(prefill) is None:
            await asyncio.wait({decode})
        if decode.done() and _failure(decode) is None:
            return
        if not _explains(_failure(decode) or _failure(prefill)):
            running = {task for task in (prefill, decode) if not task.done()}
            if running:
                await asyncio.wait(running, timeout=EXPLAIN_S)
            if _failure(decode) is None and (decode.done() or DECODE in self.begun):
                await asyncio.wait({decode})
                if _failure(decode) is None:
                    return
        raise self._first_cause(_failure(decode), _failure(prefill))

    def _first_cause(self, *failures: BaseException | None) -> BaseException:
        """Return what explains most, of decode and prefill: a worker's first-hand word first."""
        legs = (self.decode, self.prefill)
        known = [
            (failure, leg) for failure, leg in zip(failures, legs, strict=True) if failure and leg
        ]
        cause, leg = min(known, key=lambda one: _remoteness(one[0]))
        self.culprit = leg.worker
        return cause

    async def _of_decode(self, events: list[bytes]) -> None:
        self.is_here(DECODE)
        await self._pass_on(self.seamless(events))

    def seamless(self, events: list[bytes]) -> list[bytes]:
        """Return those of decode's events that the client has not seen; raises LegFailed."""
        if self.seam is None or self.seam.is_over:
            return events
        try:
            passed = [self.seam.from_decode(one) for one in events]
        except SeamBroken as error:
            name = self.decode.worker.name
            raise LegFailed(Failure(Cause.INTERNAL, self.stage, name, str(error))) from error
        return [event for event in passed if event is not None]

    async def _pass_on(self, events: list[bytes]) -> None:
        """Send events in the order in which they were taken, whichever leg brought them."""
        if not events:
            return
        self.sending = self.sending or asyncio.Lock()
        async with self.sending:
            if not self.began:
                await self.downstream.begin()
                self.began = True
            await self.downstream.send(EVENT_END.join(events) + EVENT_END)

    def is_here(self, leg: str) -> None:
        """Take note that an event of a leg came."""
        if leg not in self.begun:
            self.begun.add(leg)
            self.first_token(leg)

    async def _answer(self, prefill: Task) -> Answer:
        """Run decode's leg, with prefill's lists in its answer where they were asked for."""

        async def send(events: list[bytes]) -> None:
            if self.order.wants_prompt_logprobs:
                if self.patch is None:
                    self.patch = merge.Patch(await self._lists(prefill))
                events = [self.patch.apply(event) for event in events]
            await self._of_decode(events)

        answer = await self.decode.run(send)
        if answer.body and self.order.wants_prompt_logprobs:
            body = merge.into_answer(answer.body, await self._lists(prefill))
            return Answer(answer.status, body, answer.headers)
        return answer

    async def _lists(self, prefill: Task) -> dict[int, merge.Lists]:
        answer = await asyncio.shield(prefill)
        if answer.body:
            return merge.of_answer(answer.body)
        return {} if self.gathered is None else dict(self.gathered.lists)

    async def _gather(self, events: list[bytes]) -> None:
        self.is_here(PREFILL)
        if self.order.wants_prompt_logprobs:
            self.gathered = self.gathered or merge.Gathered()
            for event in events:
                self.gathered.take(event)
        if self.seam is not None:
            passed = [self.seam.from_prefill(one) for one in events]
            await self._pass_on([event for event in passed if event is not None])

    @property
    def stage(self) -> str:
        """How far the request is, as stories call it."""
        return "stream" if self.began else "dispatch"

    def _too_late(self) -> Failure:
        return Failure(
            Cause.LB_TIMEOUT, self.stage, self.decode.worker.name, f"not done in {self.total_s:g} s"
        )


async def _nothing() -> Answer:
    return Answer(200, b"", {})


def _failure(task: Task) -> BaseException | None:
    """Return what a task died of; None while it runs and when it ended well."""
    if not task.done():
        return None
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception()


def _explains(failure: BaseException | None) -> bool:
    """Say whether a failure needs no word from the other leg."""
    if not isinstance(failure, LegFailed) or failure.refused:
        return True
    return _remoteness(failure) == 1


def _remoteness(failure: BaseException) -> int:
    if not isinstance(failure, LegFailed):
        return 0  # the client is gone, or a bug: nothing explains it better
    if failure.said is None:
        return 2
    return 3 if failure.failure.cause in SECOND_HAND else 1


async def _end(*tasks: Task) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
