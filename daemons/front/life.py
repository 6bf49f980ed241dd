"""Whether this instance takes requests, and what it says when it does not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.topology import State
from daemons.runtime.http import Refusal


@dataclass(slots=True)
class Life:
    """The state of an instance; ``changed`` wakes the registration."""

    instance: str
    state: State = State.STARTING
    stopping: bool = False  # SIGTERM came, or a rank died: there is no way back
    reason: str = "the ranks are loading"
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self, state: State, reason: str) -> None:
        """Change the state and wake whoever tells it to others."""
        self.state = state
        self.reason = reason
        self.changed.set()

    def stop(self, reason: str) -> None:
        """Leave for good."""
        self.stopping = True
        self.enter(State.DRAINING, reason)

    def admit(self) -> None:
        """Let a new request in.

        Raises:
            Refusal: 503 with the state and its reason.
        """
        if self.state is State.READY:
            return
        if self.state is State.STARTING:
            cause = Cause.INSTANCE_STARTING
        else:
            cause = Cause.INSTANCE_STOPPING if self.stopping else Cause.INSTANCE_DRAINING
        raise Refusal.of(Failure(cause, "intake", self.instance, self.reason))
