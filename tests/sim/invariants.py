"""What must hold at every step, and what must be left at the end: nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from daemons.decode.request import Request as DecodeRequest
from daemons.decode.scheduler import Scheduler as DecodeCore
from daemons.kv.ledger import Ledger, Owner
from daemons.prefill.commands import WriteKV
from daemons.prefill.request import Request as PrefillRequest
from daemons.prefill.scheduler import Scheduler as PrefillCore
from daemons.protocol.handshake import Fence
from daemons.protocol.ids import RoomKey
from tests.sim.memory import marks

if TYPE_CHECKING:
    from tests.sim.lanes import Piece
    from tests.sim.process import Process

MAY_BE_WRITTEN = (Owner.WRITER, Owner.QUARANTINED)


class Holding(NamedTuple):
    """What a room owns."""

    key: RoomKey
    owner: Owner
    pages: tuple[int, ...]
    window: tuple[int, ...]
    row: int | None


class Violation(AssertionError):
    """An invariant is broken."""


def check_core(process: Process) -> None:
    """The ledgers agree with themselves and with the queues."""
    core = process.core
    core.pages.check()
    core.window.check()
    core.rows.check()
    if isinstance(core, DecodeCore):
        check_promises(core)
    holdings = _prefill(core) if isinstance(core, PrefillCore) else _decode(core)
    pages = window = rows = 0
    for key, owner, held, held_window, row in holdings:
        check_owner(core.pages, "page", held, key, owner)
        check_owner(core.window, "window page", held_window, key, owner)
        check_owner(core.rows, "row", () if row is None else (row,), key, owner)
        pages += len(held)
        window += len(held_window)
        rows += row is not None
    check_sum(process, core.pages, pages, len(core.cache.tree))
    check_sum(process, core.window, window, cached_windows(core))
    check_sum(process, core.rows, rows, 0)
    check_readers(process)
    queue = core.stages.waiting if isinstance(core, PrefillCore) else core.stages.prealloc
    turns = [request.turn for request in queue.rooms.values()]
    if turns != sorted(turns):
        raise Violation(f"{process.me}: the queue is not in order: {turns}")
    rooms = [request.key for request in (*core.stages.rooms(), *core.stages.ending.values())]
    if len(set(rooms)) != len(rooms):
        raise Violation(f"{process.me}: a room is in two stages: {rooms}")
    if sum(core.recorder.counts().values()) != len(rooms):
        raise Violation(f"{process.me}: the recorder has {core.recorder.counts()}, rooms {rooms}")


def check_owner(ledger: Ledger, name: str, held: Iterable[int], key: RoomKey, owner: Owner) -> None:
    """The ledger calls what a room holds the room's."""
    for index in held:
        if ledger.owner(index) != (owner, key):
            raise Violation(f"{name} {index} is {ledger.owner(index)}, not {owner} of {key}")


def check_sum(process: Process, ledger: Ledger, held: int, cached: int) -> None:
    """What rooms hold, what is cached and what is free are the whole."""
    if cached != ledger.counts()[Owner.CACHED]:
        raise Violation(f"{process.me}: {cached} pages in the tree, {ledger.counts()}")
    if held + cached + ledger.free != ledger.size:
        raise Violation(f"{process.me}: rooms hold {held}, {ledger.counts()}")


def cached_windows(core: PrefillCore | DecodeCore) -> int:
    """Return how many window pages nodes of the tree have."""
    return sum(node.window >= 0 for *_, node in core.cache.tree.nodes()) if core.window.size else 0


def check_readers(process: Process) -> None:
    """A page is read by the rooms whose lease has it, each once, and by nobody else."""
    core = process.core
    pages, windows = dict[int, list[RoomKey]](), dict[int, list[RoomKey]]()
    for request in (*core.stages.rooms(), *core.stages.ending.values()):
        for node in request.lease.nodes:
            pages.setdefault(node.page, []).append(request.key)
        for node in request.lease.windows:
            windows.setdefault(node.window, []).append(request.key)
        if not request.window.read <= {*windows}:
            raise Violation(f"{request.key} reads window pages that it has no lease of: {request}")
    for ledger, readers in ((core.pages, pages), (core.window, windows)):
        if len(readers) != ledger.read:
            raise Violation(f"{process.me}: {ledger.read} pages are read, leases have {readers}")
        for page, keys in readers.items():
            if ledger.owner(page)[0] is not Owner.CACHED:
                raise Violation(f"{process.me}: {keys} read page {page} of {ledger.owner(page)}")
            if sorted(keys) != sorted(ledger.readers(page)):
                raise Violation(f"page {page} is read by {keys}, not {ledger.readers(page)}")


def check_tree(process: Process) -> None:
    """Every cached page holds what its place in the tree says."""
    core, memory = process.core, process.memory
    model = process.world.fingerprint_of(process.instance).model
    for salt, text, node in core.cache.tree.nodes():
        if core.pages.owner(node.page) != (Owner.CACHED, None):
            raise Violation(f"{process.me} caches {node.page} of {core.pages.owner(node.page)}")
        right = marks(model, salt, text)[-memory.page_size :]  # type: ignore[arg-type]
        if memory.page(node.page) != right:
            raise Violation(f"{process.me} caches {node.page} for {text}, its content is another")
        if node.window < 0:
            continue
        check_owner(core.window, "window page", (node.window,), None, Owner.CACHED)
        if memory.window_page(node.window) != right:
            raise Violation(f"{process.me} caches window page {node.window} for {text}: another's")


def check_promises(core: DecodeCore) -> None:
    """What the rule of admission relies on holds after every step: see daemons.decode.budget."""
    stages = core.stages
    if not stages.retracted.host_pages:
        promised = sum(request.promised for request in stages.rooms() if request.pages)
        if promised > core.pages.available:
            raise Violation(f"{promised} pages promised, {core.pages.available} to be had")
        return
    offered = {request.key: len(request.pages) for request in stages.transfer.rooms.values()}
    holders = [*stages.transfer.rooms.values(), *stages.prebuilt.rooms.values()]
    holders += stages.forward.rooms.values()
    holders += [*stages.running.rooms.values(), *stages.retracted.rooms.values()]
    counts = core.pages.counts()
    unmovable = counts[Owner.WRITER] + counts[Owner.QUARANTINED]
    unmovable += sum(len(request.lease) for request in stages.transfer.rooms.values())
    needs = sum(request.need_pages for request in holders)
    left = sum(len(request.pages) for request in stages.ending.values())
    longest = max((request.need_pages for request in holders), default=0)
    host = max(0, stages.retracted.host_pages - longest)
    if needs + counts[Owner.QUARANTINED] + left > core.pages.size + host:
        raise Violation(f"{needs} pages promised of {core.pages.size} and {host} of the host")
    for request in holders:
        if len(request.pages) > request.need_pages:
            raise Violation(f"{request.key} has more pages than it can need: {request}")
        if unmovable - offered.get(request.key, 0) + request.need_pages > core.pages.size:
            raise Violation(f"{request.key} may wait for {unmovable} pages that cannot move")


def _prefill(core: PrefillCore) -> Iterable[Holding]:
    for request in (*core.stages.rooms(), *core.stages.ending.values()):
        yield _held(request, Owner.REQUEST)


def _held(request: PrefillRequest | DecodeRequest, owner: Owner) -> Holding:
    own = request.lease.others(request.pages)
    return Holding(request.key, owner, own, request.window.own, request.row)


def _decode(core: DecodeCore) -> Iterable[Holding]:
    stages = core.stages
    for request in stages.transfer.rooms.values():
        yield _held(request, Owner.WRITER)
    kept, host_pages = stages.kept_pages, stages.retracted.host_pages
    if kept > host_pages:
        raise Violation(f"{kept} pages kept, the host has {host_pages}")
    ours = (stages.prebuilt.rooms, stages.running.rooms, stages.retracted.rooms, stages.ending)
    for stage in (stages.prealloc.rooms, stages.forward.rooms, *ours):
        for request in stage.values():
            yield _held(request, Owner.REQUEST)
    for key, held in core.quarantine.rooms.items():
        yield Holding(key, Owner.QUARANTINED, held.pages, held.window, held.row)


def check_write(process: Process, command: WriteKV) -> None:
    """No write is begun for a room about which its end was said; its source is pinned."""
    if command.key in process.said_over:
        raise Violation(f"{process.me} writes for {command.key} after it said that it is over")
    check_source(process, command)


def check_source(process: Process, command: WriteKV) -> None:
    """What is read by a writer belongs to the writer's room, or is kept for it."""
    check_readable(process, command.key, command.source_pages)
    check_readable(process, command.key, command.source_window, process.core.window)


def check_readable(
    process: Process, key: RoomKey, pages: Iterable[int], ledger: Ledger | None = None
) -> None:
    """Pages are a room's own, or cached and kept for it."""
    ledger = ledger or process.core.pages
    for page in pages:
        if key not in ledger.readers(page):
            check_own(process, key, (page,), ledger)


def check_own(
    process: Process, key: RoomKey, pages: Iterable[int], ledger: Ledger | None = None
) -> None:
    """Pages are a room's own: only these may be written."""
    ledger = ledger or process.core.pages
    for page in pages:
        owner = ledger.owner(page)
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
    elif piece.is_window:
        index = piece.target
        name, owner = "window page", core.window.owner(index)
    else:
        index = piece.target
        name, owner = "page", core.pages.owner(index)
    if owner[0] not in MAY_BE_WRITTEN or owner[1] != write.key:
        raise Violation(f"{write.key} lands in {name} {index} of {target.me}, owner {owner}")
    return owner[0]


def check_idle(process: Process) -> None:
    """Nothing is left of any room, but pages that are cached and right."""
    core = process.core
    check_tree(process)
    if isinstance(core, PrefillCore) and core.cache.beside is not None:
        process.world.seen["window pages evicted"] += core.cache.beside.evictions
    left = {
        "busy": core.busy,
        "pages": core.pages.size - core.pages.available,
        "window pages": core.window.size - core.window.available,
        "rows": core.rows.size - core.rows.free,
        "rooms": len(core.stages.rooms()),
        "ending": len(core.stages.ending),
        "recorder": sum(core.recorder.counts().values()),
        "sequences": len(process.engine.sequences),
        "engine": not process.engine.idle,
        "lanes": not process.lanes.idle,
    }
    if isinstance(core, PrefillCore):
        left |= {"orphans": len(core.stages.bootstrap.orphans), "tombs": len(core.tombs)}
    else:
        left |= {"quarantine": len(core.quarantine.rooms)}
    if core.credits["tokens"] < core.pages.size * core.config.engine.page_size:
        raise Violation(f"{process.me} is idle and has credits of {core.credits}")
    if any(left.values()):
        raise Violation(f"{process.me} is not idle: { {k: v for k, v in left.items() if v} }")
