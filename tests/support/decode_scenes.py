"""Scenes for scripts about the decode core: a room as far as a script begins, and what is left."""

from __future__ import annotations

from daemons.decode.commands import ReadRow
from daemons.decode.events import RowRead
from daemons.decode.scheduler import Scheduler
from daemons.engine.step import Keep
from daemons.protocol.generate import TokenOut
from daemons.protocol.handshake import Heartbeat
from daemons.protocol.metadata import Row, RowState
from daemons.protocol.status import Status
from tests.support.cores import (
    D,
    P,
    answer,
    came,
    decode_core,
    done,
    key,
    of,
    progress,
    route,
    submitted,
)

SUCCESS = progress(Status.SUCCESS)


def paired(**settings: object) -> Scheduler:
    """A core that has registered with p0."""
    core = decode_core(**settings)  # type: ignore[arg-type]
    core.handle(submitted(99, 1, 1), 0.0)
    core.handle(route(), 0.0)
    core.handle(came(answer()), 0.0)
    core.handle(came(progress(Status.FAILED, 99)), 0.0)
    assert core.pages.free == core.pages.size
    core.counters.clear()
    return core


def row_read(room: int = 1, first: int = 5, cached: int = 0) -> RowRead:
    """The row of a room is right."""
    return RowRead(key(room), RowState.RIGHT, Row(key(room), TokenOut(first), cached))


def in_transfer(**settings: object) -> Scheduler:
    """Prefill was told where room 1 goes."""
    core = paired(**settings)
    core.handle(submitted(), 0.0)
    return core


def running(most: int = 3) -> Scheduler:
    """Room 1 has its first token, and its first step is under way."""
    core = paired()
    core.handle(submitted(most=most), 0.0)
    core.handle(came(SUCCESS), 1.0)
    core.handle(row_read(), 1.0)
    return core


def with_looks(
    core: Scheduler, event: object, now: float, state: RowState = RowState.EMPTY
) -> list[object]:
    """Handle an event and answer each look at a row, as the shell does at once."""
    commands: list[object] = list(core.handle(event, now))  # type: ignore[arg-type]
    for look in of(commands, ReadRow):
        commands += core.handle(RowRead(look.key, state, None), now)
    return commands


def heard(core: Scheduler, now: float) -> None:
    """Let p0 give a sign of life."""
    core.handle(came(Heartbeat(P, D.epoch, now)), now)


def squeezed() -> Scheduler:
    """Rooms 1 and 2 need 4 pages each in the end, of 6; each has its first 2, room 1 a token more.

    The first step of both is under way.
    """
    core = paired(pages=6, retract_tokens=64)
    for room in (1, 2):
        core.handle(submitted(room, tokens=6, most=9), float(room))
        core.handle(came(progress(Status.SUCCESS, room)), 3.0)
        core.handle(row_read(room), 3.0)
    core.handle(done(1), 4.0)
    return core


def retracted() -> tuple[Scheduler, list[Keep]]:
    """Room 1 needs its last page, so room 2 has left; its 3 pages are on their way to the host."""
    core = squeezed()
    for _ in range(9):
        if keeps := of(core.handle(done(1, 2), 5.0), Keep):
            return core, keeps
    raise AssertionError("nobody was retracted")
