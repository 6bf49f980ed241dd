"""One try at a request: its rooms, its legs, and what they cost meanwhile.

However it ends, load, rooms and places are as before; only the worker that is to blame is blamed.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from daemons.lb.asked import Asked
from daemons.lb.dispatch import Exchange, Task
from daemons.lb.fleet import Life, Pair
from daemons.lb.leg import Answer, Leg, LegFailed, drop_events
from daemons.lb.open_requests import Untasked
from daemons.lb.order import Order
from daemons.lb.retry import guilty
from daemons.lb.seam import Seam
from daemons.lb.stories import Telling

if TYPE_CHECKING:
    from daemons.lb.serving import Serving


class Client(Protocol):
    """The client's end (see :class:`Downstream`); ``telling`` is of the try that it gets to see."""

    telling: Telling

    async def begin(self) -> None: ...
    async def send(self, events: bytes) -> None: ...


class Trial:
    """One try at a request: its rooms, its legs, and what they cost meanwhile."""

    def __init__(
        self,
        serving: Serving,
        asked: Asked,
        pair: Pair,
        telling: Telling,
        legs: list[Leg],
        client: Client,
        total_s: float,
    ) -> None:
        *prefill, decode = legs
        self._serving = serving
        self._pair = pair
        self.legs = legs
        self.express: Untasked | None = None  # while no task serves it
        self._has_begun = False
        self._load = len(telling.rooms), asked.order.tokens
        self.telling = telling
        self.exchange = Exchange(
            asked.order,
            prefill[0] if prefill else None,
            decode,
            client,
            total_s,
            self._prefill_ended,
            serving.lingering.hold,
            self._seam(asked.order),
            telling.first_token,
        )

    def _seam(self, order: Order) -> Seam | None:
        serving, prefill = self._serving, self._pair.prefill
        if prefill is None or prefill.name in serving.meetings or not order.stream:
            return None  # others' prefills do not promise the same events
        return Seam(order.rooms) if serving.config.first_token == "prefill" else None

    def enter(self) -> None:
        """Count it on its workers."""
        serving, pair = self._serving, self._pair
        breakers = serving.pairing.breakers
        now_s = time.monotonic()
        self._has_begun = True
        serving.trials.add(self)
        serving.fleet.take(pair, *self._load)
        serving.pairing.credits.spend(pair.decode.life, self._load[1])
        for worker in pair.workers:
            breakers.took(worker.life, now_s)

    async def run(self, why: BaseException | None = None) -> Answer:
        """Return the answer; see :meth:`Serving.run` for what is raised, and for ``why``."""
        if not self._has_begun:
            self.enter()
        try:
            if why is not None:
                self._drop()
                raise why
            answer = await self.exchange.run()
        except BaseException as error:
            self._blame(error)
            self._leave()
            raise
        self.ended_well()
        return answer

    def ended_well(self) -> None:
        """Take the try off its workers, to their credit."""
        for worker in self._pair.workers:
            self._serving.pairing.breakers.good(worker.life)
        self._leave()

    def let_prefill_linger(self) -> None:
        """Let a leg of prefill end that outlives a good answer."""
        prefill = self.exchange.prefill
        assert prefill is not None
        task = asyncio.create_task(prefill.run(drop_events), name="leg.prefill")
        task.add_done_callback(self._prefill_ended)
        self._serving.lingering.hold(task)

    def _drop(self) -> None:
        """End the legs of a try that no task has served."""
        for leg in self.legs:
            leg.drop()
        if self.exchange.prefill is not None and not self.exchange.prefill_is_done:
            self.prefill_over("cancelled")

    def _leave(self) -> None:
        serving = self._serving
        serving.trials.discard(self)
        for leg in self.legs:
            serving.heed(leg)
        serving.fleet.give_back(self._pair.decode, *self._load)
        serving.gate.opened()
        serving.rooms.end(self.telling.rooms)

    def to_avoid(self, failed: LegFailed) -> set[Life]:
        """Return whom the next try shall not meet again."""
        culprit = guilty(failed, self.exchange.culprit, self._pair)
        return {culprit.life} if culprit else {worker.life for worker in self._pair.workers}

    def _blame(self, error: BaseException) -> None:
        breakers = self._serving.pairing.breakers
        culprit = (
            guilty(error, self.exchange.culprit, self._pair)
            if isinstance(error, LegFailed)
            else None
        )
        for worker in self._pair.workers:
            if culprit is None or worker.life != culprit.life:
                breakers.neither(worker.life)
            elif breakers.bad(worker.life, time.monotonic()):
                self._serving.log.warning("breaker.open", worker=worker.name, why=str(error))

    def _prefill_ended(self, task: Task) -> None:
        self.prefill_over(_how(task))

    def prefill_over(self, how: str) -> None:
        """Take the try off its prefill."""
        if self._pair.prefill is not None:
            self._serving.fleet.give_back(self._pair.prefill, *self._load)
        self._serving.gate.opened()
        self.telling.prefill_ended(how)


def _how(task: asyncio.Task[Answer]) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return "done" if error is None else f"failed: {error}"
