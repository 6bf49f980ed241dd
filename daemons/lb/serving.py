"""One request, try by try: admitted, paired, dispatched, and once more where that is sensible.

- A try that fails with nothing sent to the client is made again in new rooms, with the next
  attempt, on another pair where there is one: as often as ``attempts``, the budget and the time
  allow.
- Only the worker that is to blame for a failure is blamed, and a client never makes one so.
- However a try ends, load, rooms and places are as before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from daemons.lb.asked import Asked
from daemons.lb.config import LbConfig
from daemons.lb.dispatch import Lingering
from daemons.lb.fleet import Fleet, Life, Pair, Pick, Wish, Worker
from daemons.lb.gate import Gate, QueueIsFull, WaitedTooLong
from daemons.lb.leg import Answer, Leg, LegFailed
from daemons.lb.limits import Limits
from daemons.lb.metrics import Metrics
from daemons.lb.order import Order
from daemons.lb.pairing import NoPair, Pairing
from daemons.lb.retry import Budget, may_succeed_elsewhere
from daemons.lb.rooms import Rooms
from daemons.lb.stories import Telling
from daemons.lb.trial import Client, Trial
from daemons.lb.watch import Watch
from daemons.lb.wire.head import field_lines
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.ids import room_hex
from daemons.protocol.topology import State
from daemons.runtime.http import Refusal, host_in_url
from daemons.runtime.log import Logger
from daemons.runtime.recorder import Recorder

GRACE_S = 3.0  # a worker whose time is over is heard first: it knows the stage
TIMEOUT_HEADER = "X-Request-Timeout"  # seconds that the client still waits
CREATED_HEADER = "X-PD-Created"  # Unix seconds that both legs give their answers
PAUSE_S = 0.2  # before a try with workers of which one has just failed
LEAST_S = 0.001  # 0 would be no time

MakeLeg = Callable[[Worker, str, bytes, bytes], Leg]  # path, body, lines of the head


@dataclass(slots=True)
class Serving:
    """What all requests of a balancer share."""

    config: LbConfig
    fleet: Fleet
    pairing: Pairing
    gate: Gate
    rooms: Rooms
    recorder: Recorder
    metrics: Metrics
    lingering: Lingering
    log: Logger
    instance: str
    meeting: tuple[str, int]  # host and port of the phone book, as workers call it
    make_leg: MakeLeg
    heed: Callable[[Leg], None]  # looks at a leg that is over
    state: Callable[[], State]
    watch: Watch | None = None  # looks at the fleet; None: the view is given
    trials: set[Trial] = field(default_factory=set)  # under way
    limits: Limits = field(init=False)
    budget: Budget = field(init=False)
    meetings: dict[str, tuple[str, int]] = field(init=False)  # of prefills with an own place

    def __post_init__(self) -> None:
        self.budget = Budget(self.config.retry_share, self.config.retry_reserve)
        config = self.config
        self.limits = Limits(config.client_rooms, config.client_rate, config.client_burst)
        self.learn_meetings()

    def learn_meetings(self) -> None:
        """Take the places of meeting from the settings."""
        self.meetings = {
            worker.instance: (host_in_url(worker.address), worker.bootstrap_port)
            for worker in self.config.static_workers
            if worker.bootstrap_port
        }

    async def admitted(self, asked: Asked) -> Pick:
        """Return a pair that has place for a request; waits for one a while.

        Raises:
            Refusal: 503, and when to come back; where too many wait, at once.
        """
        self.budget.request(time.monotonic())
        wish = asked.wish
        try:
            return await self._entered(lambda: self.pick(wish), asked.total_s, asked.who)
        except Refusal as refusal:
            is_no_pair = refusal.failure is not None and refusal.failure.cause is Cause.LB_NO_PAIR
            if not is_no_pair or self.watch is None or not await self.watch.see_now():
                raise
        return await self._entered(lambda: self.pick(wish), asked.total_s, asked.who)

    def begun(self, asked: Asked, client: Client) -> Trial | None:
        """Return the first try of a request, begun; None where it must wait or be refused.

        Whoever ends it takes the request off the limits.
        """
        try:
            pick = self.pick(asked.wish)
        except Refusal:
            return None
        now_s = time.monotonic()
        if pick is None or self.limits.enter(asked.who, asked.order.rooms, now_s) is not None:
            return None
        self.budget.request(now_s)
        trial = self._trial(asked, pick, client, 1, "")
        client.telling = trial.telling
        trial.enter()
        return trial

    @contextmanager
    def within_limits(self, asked: Asked) -> Iterator[None]:
        """Count a request on its client's account while it is open.

        Raises:
            Refusal: 429, the client has too much open or sends too fast, and when to come back.
        """
        who, rooms = asked.who, asked.order.rooms
        after_s = self.limits.enter(who, rooms, time.monotonic())
        if after_s is not None:
            detail = "this client has too many requests open, or sends them too fast"
            failure = Failure(Cause.CLIENT_LIMITED, "dispatch", "", detail)
            self.metrics.turned_away(failure)
            raise Refusal.of(failure, retry_after_s=after_s)
        try:
            yield
        finally:
            self.limits.leave(who, rooms)

    def lose(self, worker: Worker, detail: str) -> None:
        """Take a worker out that does not answer; what it has begun and not told goes elsewhere."""
        self.log.warning("worker.struck", worker=worker.name, epoch=worker.epoch, why=detail)
        self.fleet.strike(worker)
        for trial in list(self.trials):
            if not trial.exchange.began:
                trial.exchange.lose(worker, detail)
                if trial.express is not None:
                    trial.express.go_on()

    def pick(self, wish: Wish | None = None, avoid: Collection[Life] = ()) -> Pick | None:
        """Return a pair for a request, None when no worker has a place for it now.

        Raises:
            Refusal: no pair may serve.
        """
        if self.state() is State.DRAINING:
            raise Refusal.of(Failure(Cause.INSTANCE_DRAINING, "dispatch", self.instance))
        try:
            return self.pairing.pick(wish or Wish(), time.monotonic(), avoid)
        except NoPair as error:
            raise Refusal.of(
                Failure(Cause.LB_NO_PAIR, "dispatch", "", str(error)),
                retry_after_s=self.config.poll_s,
            ) from None

    async def run(
        self,
        asked: Asked,
        first: Pick | Trial,
        client: Client,
        why: BaseException | None = None,
    ) -> Answer:
        """Return decode's answer (empty when it went out as events).

        ``first`` is what the first try gets, or the try itself where it has begun; ``why`` it has
        failed already.

        Raises:
            LegFailed: the first cause of the last try.
            ClientGone: nobody reads it.
        """
        avoid = set[Life]()
        trial = first if isinstance(first, Trial) else self._trial(asked, first, client, 1, "")
        while True:
            client.telling = trial.telling
            try:
                return await trial.run(why)
            except LegFailed as error:
                avoid.update(trial.to_avoid(error))
                failed = error
            again = await self._again(asked, trial, failed, avoid)
            if again is None:
                raise failed
            trial.telling.given_up(failed.failure)
            before, why = trial.telling, None
            retry_of = room_hex(before.rooms[0])
            trial = self._trial(asked, again, client, before.attempt + 1, retry_of)

    async def _again(
        self, asked: Asked, trial: Trial, failed: LegFailed, avoid: Collection[Life]
    ) -> Pick | None:
        """Return a pair for another try, None when there shall be none."""
        wait_s = min(self.config.retry_wait_s, asked.left_s())
        if (
            trial.exchange.began
            or trial.telling.attempt >= self.config.attempts
            or wait_s < 0
            or not may_succeed_elsewhere(failed)
            or not self.budget.spend(time.monotonic())
        ):
            return None
        if not self.pairing.offers_others(time.monotonic(), avoid):
            await asyncio.sleep(min(PAUSE_S, wait_s))  # it may turn out that the culprit is gone
        wish = asked.wish
        try:
            return await self._entered(lambda: self._pick_or_wait(wish, avoid), wait_s, asked.who)
        except Refusal:
            return None

    def _pick_or_wait(self, wish: Wish, avoid: Collection[Life]) -> Pick | None:
        try:
            return self.pick(wish, avoid)
        except Refusal:
            if self.state() is State.DRAINING:
                raise
            return None  # a killed worker may be back soon

    def _trial(
        self, asked: Asked, pick: Pick, client: Client, attempt: int, retry_of: str
    ) -> Trial:
        order, pair = asked.order, pick.pair
        rooms = self.rooms.draw(order.rooms)
        telling = Telling(
            order, pick, rooms, self.recorder, self.metrics, self.log, attempt, retry_of
        )
        telling.begun_s = asked.begun_s  # the client waits since then, whichever try it is
        left_s = max(asked.left_s(), LEAST_S)
        headers = {
            "X-Request-ID": room_hex(rooms[0]),
            **asked.headers,
            TIMEOUT_HEADER: f"{left_s:.3f}",
            CREATED_HEADER: str(int(telling.wall())),
        }
        fields = field_lines(headers)
        body = self._body(order, pair, rooms, attempt)
        legs = [self.make_leg(worker, order.path, body, fields) for worker in pair.workers]
        return Trial(self, asked, pair, telling, legs, client, left_s + GRACE_S)

    def _body(self, order: Order, pair: Pair, rooms: list[int], attempt: int) -> bytes:
        if pair.prefill is None:
            return order.alone_body(rooms, attempt)
        if (own := self.meetings.get(pair.prefill.name)) is not None:
            return order.body(rooms, *own, "")
        return order.body(rooms, *self.meeting, pair.prefill.name, attempt)

    async def _entered(self, take: Callable[[], Pick | None], patience_s: float, who: str) -> Pick:
        config = self.config
        try:
            return await self.gate.enter(take, patience_s, who)
        except QueueIsFull:
            detail = f"no worker has a place, and {config.queue} requests are waiting"
            failure = Failure(Cause.QUEUE_FULL, "dispatch", self.instance, detail)
        except WaitedTooLong:
            detail = f"no worker had a place for {min(patience_s, config.queue_s):g} s"
            failure = Failure(Cause.QUEUE_TIMEOUT, "dispatch", self.instance, detail)
        self.metrics.turned_away(failure)
        raise Refusal.of(failure, retry_after_s=config.poll_s)
