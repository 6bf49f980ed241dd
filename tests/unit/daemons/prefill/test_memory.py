"""All that a room needs on a prefill is given together, or nothing is."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from daemons.engine.config import EngineConfig
from daemons.kv.ledger import Owner
from daemons.kv.window import Windows
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.prefill.config import PrefillConfig
from daemons.prefill.memory import Memory, memory_of, window_rooms
from daemons.prefill.request import Request
from tests.support.cores import PAGE_SIZE, key, submit, window_pool


def memory(pages: int = 8, pool: WindowPool = NO_POOL, **more: Any) -> Memory:
    engine = EngineConfig(page_size=PAGE_SIZE, chunk_tokens=4, batch_tokens=8)
    return memory_of(PrefillConfig(engine=engine, **{"rows": 4} | more), pages, pool)


def room(number: int, tokens: int) -> Request:
    return Request(submit(number, tokens), key(number), 0.0, 0.0)


def served(has: Memory, number: int, tokens: int) -> Request:
    """Let a room come, be computed, and end."""
    request = room(number, tokens)
    assert has.give(request)
    while request.computed < tokens:
        end = min(tokens, request.computed + 4)
        request.window.cover(has.cache.pool, request.computed, end)
        request.computed = end
    has.cache.keep(request)
    has.release(request)
    return request


def test_a_room_gets_pages_window_pages_and_a_row() -> None:
    has = memory(pool=window_pool(9), prefix_cache=False)
    request = room(1, 20)
    assert has.give(request)
    assert (len(request.pages), len(request.window.spare), request.row) == (5, 3, 0)
    assert has.cache.window.owner(2) == (Owner.REQUEST, key(1))
    has.release(request)
    assert (has.cache.pages.free, has.cache.window.free, has.rows.free) == (8, 9, 4)


def test_a_room_that_cannot_have_all_gets_nothing() -> None:
    for has in (memory(pages=4), memory(pool=window_pool(2)), memory(rows=1)):
        if has.rows.size == 1:
            assert has.give(room(2, 4))
        before = has.cache.pages.free, has.cache.window.free, has.rows.free
        assert not has.give(room(1, 20))
        assert (has.cache.pages.free, has.cache.window.free, has.rows.free) == before


def test_while_many_are_free_a_room_takes_more_than_it_needs() -> None:
    has = memory(pool=window_pool(20))
    request = room(1, 20)
    assert has.give(request)
    assert len(request.window.spare) == 5, "the half of what is beyond the half of the pool"
    short = room(2, 4)
    assert has.give(short)
    assert len(short.window.spare) == 1, "no more than its text"


def test_long_rooms_leave_window_pages_for_all_places_of_a_batch() -> None:
    places = EngineConfig().batch_rooms
    pool = window_pool(3 * window_rooms(EngineConfig()))
    has = memory(pages=500 * places, pool=pool, rows=places)
    for number in range(places):
        assert has.give(room(number + 1, 2000)), f"{number} rooms have {has.cache.window.counts()}"


def test_a_prompt_goes_on_where_the_window_pages_of_another_are() -> None:
    has = memory(pages=16, pool=window_pool(9))
    served(has, 1, 20)
    again = room(2, 20)
    assert has.give(again)
    assert (again.computed, again.window.first, len(again.window.read)) == (16, 2, 2)
    assert again.window.pages == tuple(node.window for node in again.lease.windows)
    assert len(again.window.own) == 1


def test_what_it_would_read_and_write_may_be_more_than_there_is_then_it_reads_nothing() -> None:
    has, again = memory(pages=16, pool=window_pool(3)), room(2, 40)
    served(has, 1, 12)
    assert has.cache.window.free == 0, "a cached text has them all"
    assert has.give(again)
    assert (again.computed, len(again.window.own)) == (0, 3)


def test_what_can_never_be_here_is_told() -> None:
    assert memory(4).too_small(16) == ""
    assert memory(4).too_small(17) == "17 tokens need 5 pages, the pool has 4"
    has = memory(8, window_pool(2))
    assert has.too_small(8) == ""
    assert has.too_small(9) == "9 tokens need 3 window pages, there are 2"


def test_credits_count_the_rooms_for_which_there_are_window_pages() -> None:
    assert memory(8).credits(5, 2) == {"tokens": 32, "rows": 4, "places": 5, "queue": 2}
    assert memory(8, window_pool(7)).credits(5, 0)["places"] == 2
    assert memory(8, window_pool(7)).credits(-1, 0)["places"] == 0


def test_there_are_window_pages_for_a_batch_and_for_one_that_is_sent() -> None:
    assert window_rooms(EngineConfig(batch_rooms=64)) == 128


@pytest.mark.parametrize("seed", range(60))
def test_what_a_room_begins_with_is_its_text_and_no_room_waits_for_nobody(seed: int) -> None:
    rng = Random(seed)
    windows = Windows(PAGE_SIZE, (None, rng.choice((1, 2, 5, 9, 17))))
    has = memory(rng.randrange(8, 30), WindowPool(windows, rng.randrange(3, 20)))
    written: dict[int, tuple[int, ...]] = {}  # window page: the text up to its end
    here: list[Request] = []
    for number in range(80):
        request = room(number, rng.randrange(1, 60))
        text = tuple(1 + (rng.random() < 0.03) for _ in request.prompt)
        request.submit = msgspec.structs.replace(request.submit, prompt=text)
        if has.too_small(len(text)):
            continue
        while not has.give(request):
            assert here, f"{len(text)} tokens wait: {has.cache.window.counts()}"
            has.release(here.pop(rng.randrange(len(here))))
        here.append(request)
        table, end = request.window, request.computed
        seen = range(has.cache.pool.first_needed(end), end // PAGE_SIZE)
        while end < len(text):
            start, end = end, min(len(text), end + rng.randrange(1, 5))
            table.cover(has.cache.pool, start, end)
            for at, page in zip(seen, table.part(seen.start, seen.stop), strict=True):
                assert written[page] == text[: min(start, (at + 1) * PAGE_SIZE)]
            for at in range(start // PAGE_SIZE, table.end):
                (page,) = table.part(at, at + 1)
                written[page] = text[: min(end, (at + 1) * PAGE_SIZE)]
            seen = range(has.cache.pool.first_needed(end), table.end)
        has.cache.keep(request)
        has.cache.window.check()
    while here:
        has.release(here.pop())
    assert has.cache.window.available == has.cache.window.size
