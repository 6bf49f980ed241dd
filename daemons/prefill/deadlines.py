"""How long a room may stay in each stage of a prefill, and what it fails with then."""

from __future__ import annotations

from daemons.cluster.worker import Timers
from daemons.prefill.request import Request
from daemons.protocol.causes import Cause, Failure


def overdue(request: Request, stage: str, timers: Timers, me: str, now: float) -> Failure | None:
    """Return what a room fails with, None while it may go on waiting.

    Args:
        request: it has been in ``stage``, or has last moved in it, since ``since_s``.
        stage: which of the four it is in.
        timers: they may be others at the next look.
        me: our instance, which is to blame for a forward that stands still.
        now: of the core's clock.
    """
    if now >= request.expires_s:
        detail = f"{request.submit.timeout_s} s in total"
        return Failure(Cause.TOTAL_TIMEOUT, stage, request.peer_name, detail)
    limit_s, cause = {
        "bootstrap": (timers.destination_s, Cause.PEER_NEVER_CAME),
        "waiting": (timers.queue_s, Cause.QUEUE_TIMEOUT),
        "forward": (timers.progress_s, Cause.PROGRESS_TIMEOUT),
        "inflight": (timers.progress_s, Cause.PROGRESS_TIMEOUT),
    }[stage]
    if now - request.since_s < limit_s:
        return None
    peer = me if stage == "forward" else request.peer_name
    return Failure(cause, stage, peer, f"nothing for {limit_s} s")
