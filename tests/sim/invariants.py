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
from tests.sim.memory import marks

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
    cached = len(core.cache.tree)
    if cached != core.pages.counts()[Owner.CACHED]:
        raise Violation(f"{process.me}: {cached} pages in the tree, {core.pages.counts()}")
    if pages + cached + core.pages.free != core.pages.size:
        raise Violation(f"{process.me}: rooms hold {pages} pages, {core.pages.counts()}")
    if rows != core.rows.size - core.rows.free:
        raise Violation(f"{process.me}: rooms hold {rows} rows, {core.rows.counts()}")
    check_readers(process)
    queue = core.waiting if isinstance(core, PrefillCore) else core.prealloc
    turns = [request.turn for request in queue.rooms.values()]
    if turns != sorted(turns):
        raise Violation(f"{process.me}: the queue is not in order: {turns}")
    rooms = [request.key for request in (*core.rooms(), *core.ending.values())]
    if len(set(rooms)) != len(rooms):
        raise Violation(f"{process.me}: a room is in two stages: {rooms}")
    if sum(core.recorder.counts().values()) != len(rooms):
        raise Violation(f"{process.me}: the recorder has {core.recorder.counts()}, rooms {rooms}")


def check_readers(process: Process) -> None:
    """A page is read by the rooms whose lease has it, each once, and by nobody else."""
    core, readers = process.core, dict[int, list[RoomKey]]()
    for request in (*core.rooms(), *core.ending.values()):
        for page in request.lease.pages:
            readers.setdefault(page, []).append(request.key)
    if len(readers) != core.pages.read:
        raise Violation(f"{process.me}: {core.pages.read} pages are read, leases have {readers}")
    for page, keys in readers.items():
        if core.pages.owner(page)[0] is not Owner.CACHED:
            raise Violation(f"{process.me}: {keys} read page {page} of {core.pages.owner(page)}")
        if sorted(keys) != sorted(core.pages.readers(page)):
            raise Violation(f"page {page} is read by {keys}, not {core.pages.readers(page)}")


def check_tree(process: Process) -> None:
    """Every cached page holds what its place in the tree says."""
    core, memory = process.core, process.memory
    model = process.world.fingerprint_of(process.instance).model
    for salt, text, page in core.cache.tree.nodes():
        if core.pages.owner(page) != (Owner.CACHED, None):
            raise Violation(f"{process.me} caches page {page} of {core.pages.owner(page)}")
        right = marks(model, salt, text)[-memory.page_size :]  # type: ignore[arg-type]
        if memory.page(page) != right:
            raise Violation(f"{process.me} caches page {page} for {text}, its content is another")


def check_promises(core: DecodeCore) -> None:
    """What the rule of admission relies on holds after every step: see daemons.decode.budget."""
    if not core.retracted.host_pages:
        promised = sum(request.promised for request in core.rooms() if request.pages)
        if promised > core.pages.available:
            raise Violation(f"{promised} pages promised, {core.pages.available} to be had")
        return
    offered = {request.key: len(request.pages) for request in core.transfer.rooms.values()}
    holders = [*core.transfer.rooms.values(), *core.prebuilt.rooms.values()]
    holders += core.forward.rooms.values()
    holders += [*core.running.rooms.values(), *core.retracted.rooms.values()]
    counts = core.pages.counts()
    unmovable = counts[Owner.WRITER] + counts[Owner.QUARANTINED]
    unmovable += sum(len(request.lease) for request in core.transfer.rooms.values())
    needs = sum(request.need_pages for request in holders)
    left = sum(len(request.pages) for request in core.ending.values())
    longest = max((request.need_pages for request in holders), default=0)
    host = max(0, core.retracted.host_pages - longest)
    if needs + counts[Owner.QUARANTINED] + left > core.pages.size + host:
        raise Violation(f"{needs} pages promised of {core.pages.size} and {host} of the host")
    for request in holders:
        if len(request.pages) > request.need_pages:
            raise Violation(f"{request.key} has more pages than it can need: {request}")
        if unmovable - offered.get(request.key, 0) + request.need_pages > core.pages.size:
            raise Violation(f"{request.key} may wait for {unmovable} pages that cannot move")


def _prefill(core: PrefillCore) -> Iterable[Holding]:
    for request in (*core.rooms(), *core.ending.values()):
        yield request.key, Owner.REQUEST, request.lease.others(request.pages), request.row


def _decode(core: DecodeCore) -> Iterable[Holding]:
    for request in core.transfer.rooms.values():
        yield request.key, Owner.WRITER, request.lease.others(request.pages), request.row
    if core.kept_pages > core.retracted.host_pages:
        raise Violation(f"{core.kept_pages} pages kept, the host has {core.retracted.host_pages}")
    ours = (core.prebuilt.rooms, core.running.rooms, core.retracted.rooms, core.ending)
    for stage in (core.prealloc.rooms, core.forward.rooms, *ours):
        for request in stage.values():
            yield request.key, Owner.REQUEST, request.lease.others(request.pages), request.row
    for key, held in core.quarantine.rooms.items():
        yield key, Owner.QUARANTINED, held.pages, held.row


def check_write(process: Process, command: WriteKV) -> None:
    """No write is begun for a room about which its end was said; its source is pinned."""
    if command.key in process.said_over:
        raise Violation(f"{process.me} writes for {command.key} after it said that it is over")
    check_source(process, command)


def check_source(process: Process, command: WriteKV) -> None:
    """What is read by a writer belongs to the writer's room, or is kept for it."""
    check_readable(process, command.key, command.source_pages)


def check_readable(process: Process, key: RoomKey, pages: Iterable[int]) -> None:
    """Pages are a room's own, or cached and kept for it."""
    ledger = process.core.pages
    for page in pages:
        if key not in ledger.readers(page):
            check_own(process, key, (page,))


def check_own(process: Process, key: RoomKey, pages: Iterable[int]) -> None:
    """Pages are a room's own: only these may be written."""
    for page in pages:
        owner = process.core.pages.owner(page)
        if owner != (Owner.REQUEST, key):
            raise Violation(f"{process.me} uses page {page} of {owner} for {key}")


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
    """Nothing is left of any room, but pages that are cached and right."""
    core = process.core
    check_tree(process)
    left = {
        "busy": core.busy,
        "pages": core.pages.size - core.pages.available,
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
