"""Whether a failed try is made again, and who is to blame for it; pure.

- Never after anything was sent to the client, never for what the client did, never for a defect
  that the same request would meet again.
- Retries are a share of requests: a fleet in trouble is not drowned in them. Source of the idea:
  Finagle's and linkerd's retry budgets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.lb.fleet import Pair, Worker
from daemons.lb.leg import LegFailed
from daemons.protocol.causes import Cause

TELLING = frozenset({502, 503, 504})  # of a worker that names no cause of ours
BLAMED = frozenset(
    {
        Cause.LB_WORKER_GONE,
        Cause.LB_TIMEOUT,
        Cause.ENGINE_FAILED,
        Cause.INTERNAL,
        Cause.PEER_DIED,
        Cause.PEER_UNREACHABLE,
    }
)  # by which a failure says something about the worker that it names


@dataclass(slots=True)
class Budget:
    """Tokens: each request brings a part of one, each retry takes one."""

    share: float  # retries per request, in the long run
    reserve: float  # retries that are there from the beginning, and at most
    refill_s: float = 1.0  # and one comes back in so long, for balancers with few requests
    tokens: float = field(init=False)
    at_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.tokens = self.reserve

    def request(self, now_s: float) -> None:
        """A request came."""
        self._grow(self.share, now_s)

    def spend(self, now_s: float) -> bool:
        """Take one retry; say whether there was one."""
        self._grow(0.0, now_s)
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    def _grow(self, more: float, now_s: float) -> None:
        since_s = max(0.0, now_s - self.at_s)
        self.tokens = min(self.reserve, self.tokens + more + since_s / self.refill_s)
        self.at_s = now_s


def may_succeed_elsewhere(failed: LegFailed) -> bool:
    """Say whether the same request may succeed in another room, on another pair."""
    said, cause = failed.said, failed.failure.cause
    if said is not None and said.status < 500:
        return False
    if cause is Cause.INTERNAL and said is not None:
        return said.status in TELLING
    return failed.failure.retry_is_sensible and cause is not Cause.LB_NO_PAIR


def guilty(failed: LegFailed, by: Worker | None, pair: Pair) -> Worker | None:
    """Return the worker of ``pair`` that a failure is to be blamed on.

    Args:
        by: whose leg told of it, or broke; None: neither.
    """
    said, failure = failed.said, failed.failure
    if by is None or (said is not None and said.status < 500) or failure.cause not in BLAMED:
        return None
    return next((worker for worker in pair.workers if worker.name == failure.peer), by)
