"""What must hold at every step, and what must be left at the end: nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from daemons.decode.scheduler import Scheduler as DecodeCore
from daemons.kv.ledger import Owner
from daemons.prefill.commands import WriteKV
from daemons.prefill.scheduler import Scheduler as PrefillCore
from daemons.protocol.handshake import Fence
from daemons.protocol.ids import RoomKey

if TYPE_CHECKING:
    from tests.sim.lanes import Piece
    from tests.sim.process import Process

MAY_BE_WRITTEN = (Owner.WRITER, Owner.QUARANTINED)
Holding = tuple[RoomKey, Owner, tuple[int, ...], int | None]


class Violation(AssertionError):
    """An invariant is broken."""


def check_core(process: Process) -> None:
    """The ledgers agree with themselves and with the queues."""
    core = process.core
    core.pages.check()
    core.rows.check()
    if isinstance(core, DecodeCore):
        check_promises(core)
    holdings = _prefill(core) if isinstance(core, PrefillCore) else _decode(core)
    pages = rows = 0
    for key, owner, held, row in holdings:
        for page in held:
            if core.pages.owner(page) != (owner, key):
                raise Violation(f"page {page} is {core.pages.owner(page)}, not {owner} of {key}")
        if row is not None and core.rows.owner(row) != (owner, key):
            raise Violation(f"row {row} is {core.rows.owner(row)}, not {owner} of {key}")
        pages += len(held)
        rows += row is not None
    if pages != core.pages.size - core.pages.free or rows != core.rows.size - core.rows.free:
        raise Violation(f"{process.me}: rooms hold {pages} pages and {rows} rows, see the ledgers")
    queue = core.waiting if isinstance(core, PrefillCore) else core.prealloc
    turns = [request.turn for request in queue.rooms.values()]
    if turns != sorted(turns):
        raise Violation(f"{process.me}: the queue is not in order: {turns}")
    rooms = [request.key for request in (*core.rooms(), *core.ending.values())]
    if len(set(rooms)) != len(rooms):
        raise Violation(f"{process.me}: a room is in two stages: {rooms}")
    if sum(core.recorder.counts().values()) != len(rooms):
        raise Violation(f"{process.me}: the recorder has {core.recorder.counts()}, rooms {rooms}")


def check_promises(core: DecodeCore) -> None:
    """What the rule of admission relies on holds after every step: see daemons.decode.budget."""
    offered = {request.key: len(request.pages) for request in core.transfer.rooms.values()}
    holders = [*core.transfer.rooms.values(), *core.prebuilt.rooms.values()]
    holders += core.forward.rooms.values()
    holders += [*core.running.rooms.values(), *core.retracted.rooms.values()]
    counts = core.pages.counts()
    unmovable = counts[Owner.WRITER] + counts[Owner.QUARANTINED]
    needs = sum(request.need_pages for request in holders)
    left = sum(len(request.pages) for request in core.ending.values())
    longest = max((request.need_pages for request in holders), default=0)
    host = max(0, core.retracted.host_pages - longest)
    if needs + counts[Owner.QUARANTINED] + left > core.pages.size + host:
        raise Violation(f"{needs} pages promised of {core.pages.size} and {host} of the host")
    for request in holders:
        if unmovable - offered.get(request.key, 0) + request.need_pages > core.pages.size:
            raise Violation(f"{request.key} may wait for {unmovable} pages that cannot move")


def _prefill(core: PrefillCore) -> Iterable[Holding]:
    for request in (*core.rooms(), *core.ending.values()):
        yield request.key, Owner.REQUEST, request.pages, request.row


def _decode(core: DecodeCore) -> Iterable[Holding]:
    for request in core.transfer.rooms.values():
        yield request.key, Owner.WRITER, request.pages, request.row
    if core.kept_pages > core.retracted.host_pages:
        raise Violation(f"{core.kept_pages} pages kept, the host has {core.retracted.host_pages}")
    ours = (core.prebuilt.rooms, core.running.rooms, core.retracted.rooms, core.ending)
    for stage in (core.prealloc.rooms, core.forward.rooms, *ours):
        for request in stage.values():
            yield request.key, Owner.REQUEST, request.pages, request.row
    for key, held in core.quarantine.rooms.items():
        yield key, Owner.QUARANTINED, held.pages, held.row


def check_write(process: Process, command: WriteKV) -> None:
    """No write is begun for a room about which its end was said; its source is pinned."""
    if command.key in process.said_over:
        raise Violation(f"{process.me} writes for {command.key} after it said that it is over")
    check_source(process, command)


def check_source(process: Process, command: WriteKV) -> None:
    """What is read by a writer belongs to the writer's room."""
    for page in command.source_pages:
        if process.core.pages.owner(page) != (Owner.REQUEST, command.key):
            owner = process.core.pages.owner(page)
            raise Violation(f"{process.me} sends page {page} of {owner} for {command.key}")


def check_landing(piece: Piece, target: Process) -> Owner:
    """Bytes land only where their own room offered, or left, memory to its writer."""
    write, core = piece.write, target.core
    fence = piece.writer.said_over.get(write.key)
    if fence is Fence.CLEAN:
        raise Violation(f"{piece.writer.me} said {fence} for {write.key}, and a piece lands")
    if piece.is_row:
        name, index, owner = "row", write.target_row, core.rows.owner(write.target_row)
    else:
        index = write.target_pages[piece.index]
        name, owner = "page", core.pages.owner(index)
    if owner[0] not in MAY_BE_WRITTEN or owner[1] != write.key:
        raise Violation(f"{write.key} lands in {name} {index} of {target.me}, owner {owner}")
    return owner[0]


def check_idle(process: Process) -> None:
    """Nothing is left of any room."""
    core = process.core
    left = {
        "busy": core.busy,
        "pages": core.pages.size - core.pages.free,
        "rows": core.rows.size - core.rows.free,
        "rooms": len(core.rooms()),
        "ending": len(core.ending),
        "recorder": sum(core.recorder.counts().values()),
        "sequences": len(process.engine.sequences),
        "engine": not process.engine.idle,
        "lanes": not process.lanes.idle,
    }
    if isinstance(core, PrefillCore):
        left |= {"orphans": len(core.bootstrap.orphans), "tombs": len(core.tombs)}
    else:
        left |= {"quarantine": len(core.quarantine.rooms)}
    if core.credits["tokens"] < core.pages.size * core.config.engine.page_size:
        raise Violation(f"{process.me} is idle and has credits of {core.credits}")
    if any(left.values()):
        raise Violation(f"{process.me} is not idle: { {k: v for k, v in left.items() if v} }")
