"""What of a prompt need not travel again."""

from __future__ import annotations

from typing import Any

import pytest

from daemons.decode.commands import VerifySums
from daemons.decode.events import Retract, RowRead
from daemons.decode.scheduler import Scheduler
from daemons.engine.step import Keep, Kept, Restore, Restored, Run, StepFailed
from daemons.kv.ledger import Owner
from daemons.protocol.generate import TokenOut
from daemons.protocol.handshake import Destination, Fence
from daemons.protocol.metadata import ChunkSum, Row, RowState
from daemons.protocol.status import Status
from daemons.runtime.events import Cancelled, Finished
from tests.support.cores import (
    CANCELLED,
    PAGE_SIZE,
    P,
    answer,
    came,
    decode_core,
    done,
    key,
    of,
    progress,
    route,
    said,
    submitted,
)


def paired(*, pages: int = 12, **more: object) -> Scheduler:
    core = decode_core(pages=pages, **{"prefix_cache": True} | more)  # type: ignore[arg-type]
    core.handle(submitted(99, 1, 1), 0.0)
    core.handle(route(), 0.0)
    core.handle(came(answer()), 0.0)
    arrive(core, 99)
    assert not core.busy
    return core


def arrive(core: Scheduler, room: int, first: int = 7) -> list[object]:
    """All bytes of a room are here."""
    core.handle(came(progress(Status.SUCCESS, room)), 1.0)
    row = Row(key(room), TokenOut(first))
    return list(core.handle(RowRead(key(room), RowState.RIGHT, row), 1.0))


def ask(core: Scheduler, room: int, tokens: int, most: int = 3, **changes: Any) -> Destination:
    (where,) = said(core.handle(submitted(room, tokens, most, **changes), 0.0), Destination)
    return where


def serve(core: Scheduler, room: int, tokens: int, most: int = 3, **changes: Any) -> None:
    ask(core, room, tokens, most, **changes)
    arrive(core, room)
    for _ in range(most - 1):
        core.handle(done(room), 2.0)
    assert not core.busy


def test_a_text_leaves_its_whole_pages_and_the_next_one_tells_that_they_are_here() -> None:
    core = paired()
    serve(core, 1, 10)
    assert core.pages.counts()[Owner.CACHED] == 3, "10 of the prompt, 2 of the output"
    where = ask(core, 2, 10)
    assert (where.prefix_tokens, len(where.pages)) == (8, 1)


def test_sums_are_compared_in_the_pages_that_travelled_behind_what_was_here() -> None:
    core = paired()
    serve(core, 1, 10)
    where = ask(core, 2, 14)
    core.handle(came(progress(Status.SUCCESS, 2)), 1.0)
    row = Row(key(2), TokenOut(7), 8, (ChunkSum(2, 2, 77),))
    (order,) = of(core.handle(RowRead(key(2), RowState.RIGHT, row), 1.0), VerifySums)
    assert (order.offered.first, order.offered.pages) == (2, where.pages)
    assert order.offered.part(2, 4).pages == where.pages


def test_the_output_is_found_by_the_next_turn() -> None:
    core = paired()
    serve(core, 1, 10)
    prompt = (*range(1, 11), 7, 7, 7, 50)
    where = ask(core, 2, 10, prompt=prompt)
    assert (where.prompt_tokens, where.prefix_tokens, len(where.pages)) == (14, 12, 1)


def test_the_newest_token_is_not_written_yet_and_its_page_is_not_kept() -> None:
    core = paired()
    serve(core, 1, 10, most=2)  # the last one chosen would fill the page
    assert core.pages.counts()[Owner.CACHED] == 2


def test_a_prompt_that_is_here_whole_needs_no_page() -> None:
    core = paired()
    serve(core, 1, 8)
    where = ask(core, 2, 8)
    assert (where.prefix_tokens, where.pages) == (8, ())


def test_the_page_table_begins_with_what_was_cached() -> None:
    core = paired()
    serve(core, 1, 10)
    where = ask(core, 2, 10)
    cached = core.stages.transfer.rooms[key(2)].lease.pages
    ((item,),) = (run.items for run in of(arrive(core, 2), Run))
    assert item.pages == (*cached, *where.pages)
    assert item.start == 10


def test_a_destination_that_is_repeated_tells_the_same_prefix() -> None:
    core = paired()
    serve(core, 1, 10)
    where = ask(core, 2, 10)
    core.out.destination(core.stages.transfer.rooms[key(2)], PAGE_SIZE)
    (again,) = said(core.out.take(), Destination)
    assert again == where


def test_pages_that_are_read_are_not_given_to_others() -> None:
    core = paired(pages=6)
    serve(core, 1, 10)
    ask(core, 2, 10)  # reads 2, and may need 1 more
    core.handle(submitted(3, 16, 1, prompt=tuple(range(50, 66))), 0.0)
    assert list(core.stages.prealloc.rooms) == [key(3)]
    core.handle(Cancelled(key(2), CANCELLED), 1.0)
    assert list(core.stages.transfer.rooms) == [key(3)]
    assert core.counters["cache_evictions"] == 2, "one more is in quarantine"


def test_what_a_writer_may_still_write_is_in_no_tree_and_what_was_read_is_free_to_go() -> None:
    core = paired()
    serve(core, 1, 10)
    ask(core, 2, 10)
    core.handle(Cancelled(key(2), CANCELLED), 1.0)
    assert core.pages.counts()[Owner.QUARANTINED] == 1
    assert core.pages.read == 0
    core.handle(came(progress(Status.FAILED, 2, fence=Fence.CLEAN)), 1.0)
    assert core.pages.counts()[Owner.CACHED] == 3
    assert core.pages.available == core.pages.size


@pytest.mark.parametrize("end", [Finished(key(1)), Cancelled(key(1), CANCELLED)])
def test_a_text_that_was_ended_from_outside_is_kept_when_the_step_is_over(end: object) -> None:
    core = paired()
    ask(core, 1, 10, most=9)
    arrive(core, 1)
    core.handle(end, 2.0)  # type: ignore[arg-type]
    assert core.pages.counts()[Owner.REQUEST] == 3
    core.handle(done(1), 2.0)
    assert core.pages.counts()[Owner.CACHED] == 2
    assert core.pages.available == core.pages.size


def test_a_text_that_the_engine_broke_is_not_kept() -> None:
    core = paired()
    ask(core, 1, 10)
    arrive(core, 1)
    core.handle(StepFailed((key(1),), "broken"), 2.0)
    assert core.pages.free == core.pages.size


def test_a_retracted_room_takes_a_copy_of_what_it_reads_along() -> None:
    core = paired(retract_tokens=80)
    serve(core, 1, 10)
    ask(core, 2, 10, most=9)
    arrive(core, 2)
    core.handle(Retract(key(2)), 2.0)
    (keep,) = of(core.handle(done(2), 2.0), Keep)
    assert len(keep.pages) == 3
    assert core.pages.read == 2
    (back,) = of(core.handle(Kept(key(2)), 3.0), Restore)
    assert core.pages.read == 0
    assert not set(back.pages) & {node.page for _, _, node in core.cache.tree.nodes()}
    (run,) = of(core.handle(Restored(key(2)), 4.0), Run)
    assert run.items[0].pages == back.pages


def test_a_room_that_ends_while_it_is_copied_back_is_not_kept() -> None:
    core = paired(retract_tokens=80)
    ask(core, 2, 10, most=9)
    arrive(core, 2)
    core.handle(Retract(key(2)), 2.0)
    core.handle(done(2), 2.0)
    core.handle(Kept(key(2)), 3.0)
    core.handle(Cancelled(key(2), CANCELLED), 3.0)
    core.handle(Restored(key(2)), 4.0)
    assert core.pages.free == core.pages.size


def test_the_cache_is_credit_and_not_business() -> None:
    core = paired()
    serve(core, 1, 10)
    assert core.credits["tokens"] == core.pages.size * PAGE_SIZE
    assert not core.busy


def test_salts_do_not_meet() -> None:
    core = paired()
    serve(core, 1, 10, cache_salt="a")
    assert ask(core, 2, 10).prefix_tokens == 0
    assert ask(core, 3, 10, cache_salt="a").prefix_tokens == 8


def test_without_a_cache_everything_travels() -> None:
    core = paired(prefix_cache=False)
    serve(core, 1, 10)
    assert ask(core, 2, 10).prefix_tokens == 0
    assert core.pages.counts()[Owner.CACHED] == 0


def test_the_prefill_that_computes_is_of_no_matter() -> None:
    core = paired()
    serve(core, 1, 10)
    assert core.stages.transfer.rooms == {}
    assert ask(core, 2, 10).to_epoch == P.epoch
