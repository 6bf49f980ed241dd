"""Scenes for scripts about the prefill core: a room as far as a script begins, what is left."""

from __future__ import annotations

from daemons.prefill.scheduler import Scheduler
from daemons.protocol.handshake import Heartbeat
from daemons.transfer.config import TransferConfig
from tests.support.cores import D, P, buffers, came, destination, done, prefill_core, submitted


def paired(**settings: object) -> Scheduler:
    """A core with which d0 has registered."""
    core = prefill_core(**settings)  # type: ignore[arg-type]
    core.handle(came(buffers(D)), 0.0)
    return core


def in_forward(tokens: int = 6) -> Scheduler:
    """Room 1 has its first chunk under way."""
    core = paired()
    core.handle(submitted(tokens=tokens), 0.0)
    core.handle(came(destination(tokens=tokens)), 0.0)
    return core


def in_flight() -> Scheduler:
    """Room 1 is computed; its two writes are with the lane."""
    core = in_forward()
    core.handle(done(1, token=0), 1.0)
    core.handle(done(1), 2.0)
    return core


def heard(core: Scheduler, now: float) -> None:
    """Let d0 give a sign of life."""
    core.handle(came(Heartbeat(D, P.epoch, now)), now)


def layered(tokens: int = 6) -> Scheduler:
    """Room 1 has its first chunk under way, and a write that follows it."""
    core = paired(transfer=TransferConfig(grain="layer"))
    core.handle(submitted(tokens=tokens), 0.0)
    core.handle(came(destination(tokens=tokens)), 0.0)
    return core
