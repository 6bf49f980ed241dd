"""Whether this instance takes requests, and what it says when it does not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.topology import State
from daemons.runtime.http import Refusal


@dataclass(slots=True)
class Life:
    """The state of an instance; ``changed`` wakes the registration.

    ready -> draining (told first, then refusing) -> drained, and back until it stops.
    """

    instance: str
    state: State = State.STARTING
    stopping: bool = False  # SIGTERM came, or a rank died: there is no way back
    reason: str = "the ranks are loading"
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    notice_ends_s: float = 0.0  # on the loop's clock; until then requests are still taken
    drain_ends_s: float | None = None  # on the loop's clock; then rooms that are left are ended

    def enter(self, state: State, reason: str) -> None:
        """Change the state and wake whoever tells it to others."""
        self.state = state
        self.reason = reason
        self.changed.set()

    def drain(self, reason: str, notice_s: float) -> None:
        """Leave routing: told to others at once, requests that are on their way are still taken."""
        self.notice_ends_s = asyncio.get_running_loop().time() + notice_s
        self.enter(State.DRAINING, reason)

    def stop(self, reason: str, notice_s: float = 0.0, drain_s: float | None = None) -> None:
        """Leave for good; rooms have ``drain_s`` to end."""
        self.stopping = True
        if drain_s is not None:
            self.drain_ends_s = asyncio.get_running_loop().time() + drain_s
        self.drain(reason, notice_s)

    def drain_left_s(self) -> float | None:
        """Return how long rooms still have; None without a deadline."""
        if self.drain_ends_s is None:
            return None
        return max(self.drain_ends_s - asyncio.get_running_loop().time(), 0.0)

    async def notice_over(self) -> None:
        """Wait until requests are refused, or wanted again."""
        while self.state is State.DRAINING:
            left_s = self.notice_ends_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            await asyncio.sleep(left_s)

    def welcome(self) -> None:
        """Say that new requests are wanted here.

        Raises:
            Refusal: 503 with the state and its reason.
        """
        if self.state is not State.READY:
            self._refuse()

    def admit(self) -> None:
        """Let a new request in, also one that is on its way while we leave.

        Raises:
            Refusal: 503 with the state and its reason.
        """
        given_notice = asyncio.get_running_loop().time() < self.notice_ends_s
        if self.state is State.DRAINING and given_notice:
            return
        self.welcome()

    def _refuse(self) -> None:
        if self.state is State.STARTING:
            cause = Cause.INSTANCE_STARTING
        else:
            cause = Cause.INSTANCE_STOPPING if self.stopping else Cause.INSTANCE_DRAINING
        raise Refusal.of(Failure(cause, "intake", self.instance, self.reason))
