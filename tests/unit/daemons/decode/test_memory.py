"""All that a room has on a decode comes and goes together."""

from __future__ import annotations

from typing import Any

from daemons.decode.config import DecodeConfig
from daemons.decode.memory import Memory, memory_of, window_rooms
from daemons.decode.request import Request
from daemons.engine.config import EngineConfig
from daemons.kv.ledger import Owner
from daemons.kv.stretch import Stretch
from daemons.kv.window_pool import NO_POOL, WindowPool
from tests.support.cores import CANCELLED, PAGE_SIZE, P, key, submit, window_pool


def memory(pages: int = 8, pool: WindowPool = NO_POOL, **more: Any) -> Memory:
    engine = EngineConfig(page_size=PAGE_SIZE, chunk_tokens=8)
    return memory_of(DecodeConfig(engine=engine, **{"rows": 4} | more), pages, pool)


def room(number: int, tokens: int, need: int, *, local: bool = False) -> Request:
    return Request(submit(number, tokens), key(number), 0.0, 0.0, need, peer=P, local=local)


def reserved(has: Memory, request: Request) -> Request:
    assert not has.lacks(request)
    has.reserve(request, -(-request.prompt_tokens // PAGE_SIZE))
    return request


def test_window_pages_are_reserved_for_the_whole_stay_and_offered_from_where_they_are_seen() -> (
    None
):
    has = memory(pool=window_pool(9))
    request = reserved(has, room(1, 14, 6))
    assert (request.window.first, request.window.pages, request.window.spare) == (2, (0, 1), (2,))
    assert has.window.owner(2) == (Owner.WRITER, key(1)), "what is not offered yet as well"
    assert has.offered(request) == Stretch(0, (0, 1, 2, 3), 2, (0, 1))


def test_a_prompt_that_is_computed_here_begins_with_an_empty_table() -> None:
    has = memory(pool=window_pool(9))
    request = reserved(has, room(1, 14, 6, local=True))
    assert (request.window.first, request.window.pages, len(request.window.spare)) == (0, (), 4)
    assert has.window.owner(3) == (Owner.REQUEST, key(1))
    assert request.row is None


def test_a_room_needs_no_more_window_pages_than_it_has_pages() -> None:
    has = memory(pool=window_pool(9))
    assert len(reserved(has, room(1, 4, 2)).window.own) == 2


def test_without_window_pages_or_a_row_a_room_waits() -> None:
    has = memory(pool=window_pool(4))
    reserved(has, room(1, 4, 2))
    assert has.lacks(room(2, 14, 6))
    assert not has.lacks(room(2, 4, 2))
    none = memory(rows=1)
    reserved(none, room(1, 4, 2))
    assert none.lacks(room(2, 4, 2))
    assert not none.lacks(room(2, 4, 2, local=True))


def test_what_has_landed_is_the_rooms_and_its_end_gives_all_back() -> None:
    has = memory(pool=window_pool(9))
    request = reserved(has, room(1, 14, 6))
    has.landed(request)
    assert has.window.counts()[Owner.REQUEST] == 3
    assert has.rows.free == 4
    has.end(request, keep=True)
    assert has.window.free == 9
    assert has.pages.available == 8
    assert request.window.own == ()


def test_the_host_takes_the_pages_and_the_window_pages_stay() -> None:
    has = memory(pool=window_pool(9))
    request = reserved(has, room(1, 14, 6))
    has.landed(request)
    has.cache.release(request)
    assert has.pages.free == 8
    assert has.window.counts()[Owner.REQUEST] == 3


def test_what_a_writer_may_still_write_is_in_quarantine_until_it_settles() -> None:
    has = memory(pool=window_pool(9))
    request = reserved(has, room(1, 14, 6))
    held = has.isolate(request, CANCELLED, 1.0)
    assert (held.pages, held.window, held.row) == ((0, 1, 2, 3), (0, 1, 2), 0)
    assert has.window.owner(2) == (Owner.QUARANTINED, key(1))
    has.end(request, keep=False)
    assert has.window.counts()[Owner.QUARANTINED] == 3
    has.settle(key(1), held)
    assert (has.pages.free, has.window.free, has.rows.free) == (8, 9, 4)


def test_what_can_never_be_here_is_told() -> None:
    assert memory(4).too_small(17, local=False) == "17 tokens need 5 pages, the pool has 4"
    has = memory(8, window_pool(3))
    assert has.too_small(20, local=False) == ""
    assert has.too_small(20, local=True) == "20 tokens need 4 window pages, there are 3"


def test_places_are_rooms_for_which_there_are_window_pages() -> None:
    assert memory().places(5) == 5
    assert memory().places(-2) == 0
    assert memory(pool=window_pool(7)).places(5) == 2


def test_of_cached_pages_only_full_layers_have_any_so_a_prompt_is_computed_whole() -> None:
    has = memory(pool=window_pool(9))
    first = reserved(has, room(1, 8, 2, local=True))
    first.output = [7]
    has.end(first, keep=True)
    assert len(has.cache.tree) == 2
    second = room(2, 9, 3, local=True)
    has.cache.lease(second)
    assert (second.computed, len(second.lease)) == (0, 0)
    third = room(3, 9, 3)
    has.cache.lease(third)
    assert len(third.lease) == 2


def test_there_are_window_pages_for_two_batches_and_some_in_quarantine() -> None:
    assert window_rooms(EngineConfig(batch_rooms=64)) == 144
    assert window_rooms(EngineConfig(batch_rooms=1)) == 3
