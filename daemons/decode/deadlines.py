"""How long a room may stay in each stage of a decode, and what it fails with then.

Every wait on a peer has a deadline of its own, and the client's patience is one over all stages.
Timers come in as arguments: they may be others at the next look.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.cluster.worker import Timers
from daemons.decode.prefills import Prefills
from daemons.decode.request import Request
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.status import Status

MARGIN_S = 2.0  # prefill watches the same waits and knows the reason: let it speak first


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Says which rooms have waited too long, for whom."""

    me: str  # our instance
    prefills: Prefills

    def overdue(self, request: Request, stage: str, timers: Timers, now: float) -> Failure | None:
        """Return what a room fails with, None while it may go on waiting."""
        if now >= request.expires_s:
            detail = f"{request.submit.timeout_s} s in total"
            peer = request.prefill if stage in ("prealloc", "transfer") else ""
            return Failure(Cause.TOTAL_TIMEOUT, stage, peer, detail)
        waited_s = now - request.since_s
        if stage == "prealloc":
            return self._in_prealloc(request, timers, waited_s)
        if stage == "transfer":
            return _in_transfer(request, timers, waited_s)
        if stage == "forward" and waited_s >= timers.progress_s:
            detail = f"no chunk for {timers.progress_s} s"
            return Failure(Cause.PROGRESS_TIMEOUT, stage, self.me, detail)
        return None

    def _in_prealloc(self, request: Request, timers: Timers, waited_s: float) -> Failure | None:
        instance = request.submit.prefill
        if not request.local and self.prefills.ready(instance) is None:
            if waited_s < timers.handshake_s:
                return None
            last = self.prefills.last_failure(instance)
            detail = f"not ready within {timers.handshake_s} s"
            return last or Failure(Cause.HANDSHAKE_TIMEOUT, "prealloc", instance, detail)
        if waited_s < timers.queue_s:
            return None
        detail = f"{request.need_pages} pages were not free within {timers.queue_s} s"
        return Failure(Cause.QUEUE_TIMEOUT, "prealloc", self.me, detail)


def _in_transfer(request: Request, timers: Timers, waited_s: float) -> Failure | None:
    """Prefill has been silent about a room for too long, as far as it was with it."""
    limit_s, cause = {
        Status.BOOTSTRAPPING: (timers.destination_s, Cause.PEER_NEVER_CAME),
        Status.WAITING_FOR_INPUT: (timers.queue_s, Cause.QUEUE_TIMEOUT),
    }.get(request.status, (timers.progress_s, Cause.PROGRESS_TIMEOUT))
    if waited_s < limit_s + MARGIN_S:
        return None
    peer = request.peer.instance if request.peer else ""
    return Failure(cause, "transfer", peer, f"nothing for {limit_s + MARGIN_S} s")
