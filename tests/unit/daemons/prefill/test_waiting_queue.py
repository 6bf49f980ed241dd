"""First come, first served, as far as pages, rows and tokens go."""

from __future__ import annotations

from daemons.kv.ledger import Ledger, Owner
from daemons.kv.prefix_tree import PrefixTree
from daemons.kv.window_table import WindowTable
from daemons.prefill.cache import Cache
from daemons.prefill.memory import Memory
from daemons.prefill.request import Request
from daemons.prefill.waiting_queue import WaitingQueue
from tests.support.cores import key, submit, window_pool


def queue(
    *tokens: int, batch_tokens: int = 8, chunk: int = 4, batch_rooms: int = 9
) -> WaitingQueue:
    waiting = WaitingQueue(4, batch_tokens, chunk, batch_rooms)
    for room, count in enumerate(tokens, 1):
        waiting.rooms[key(room)] = Request(submit(room, count), key(room), 0.0, 0.0)
    return waiting


def memory(pages: Ledger, rows: Ledger) -> Memory:
    return Memory(rows, Cache(pages, PrefixTree(pages, 4), 4, on=False))


def test_rooms_get_pages_and_a_row_in_order() -> None:
    waiting, pages, rows = queue(5, 4), Ledger(4), Ledger(2, "row")
    begun = waiting.begin(memory(pages, rows))
    assert [request.key for request in begun] == [key(1), key(2)]
    assert [request.pages for request in begun] == [(0, 1), (2,)]
    assert [request.row for request in begun] == [0, 1]
    assert pages.owner(2) == (Owner.REQUEST, key(2))


def test_a_room_that_does_not_fit_is_not_overtaken() -> None:
    waiting = queue(4, 9, 1)
    assert [r.key for r in waiting.begin(memory(Ledger(3), Ledger(9)))] == [key(1)]
    assert list(waiting.rooms) == [key(2), key(3)]


def test_without_a_row_nobody_begins() -> None:
    waiting = queue(4, 4)
    assert [r.key for r in waiting.begin(memory(Ledger(9), Ledger(1)))] == [key(1)]


def test_no_more_rooms_begin_than_a_batch_has() -> None:
    waiting = queue(1, 1, 1, batch_rooms=2)
    assert len(waiting.begin(memory(Ledger(9), Ledger(9)))) == 2
    assert waiting.begin(memory(Ledger(9), Ledger(9))) == []


def test_a_batch_is_chunks_within_the_budget() -> None:
    waiting = queue(10, 3, 4)
    waiting.begin(memory(Ledger(9), Ledger(9)))
    first, second, third = waiting.batch()
    assert (first.tokens, first.start, first.samples) == ((1, 2, 3, 4), 0, False)
    assert (second.tokens, second.samples) == ((1, 2, 3), True)
    assert (third.tokens, third.samples) == ((1,), False)


def test_the_last_chunk_is_the_rest_and_sees_all_pages_before_it() -> None:
    waiting = queue(10)
    (request,) = waiting.begin(memory(Ledger(9), Ledger(9)))
    request.computed = 8
    (item,) = waiting.batch()
    assert (item.tokens, item.start, item.pages, item.samples) == ((9, 10), 8, (0, 1, 2), True)


def test_a_forward_is_progress_of_all_rooms_that_have_begun() -> None:
    waiting = queue(4, 4, 4, batch_rooms=2)
    waiting.begin(memory(Ledger(9), Ledger(9)))
    waiting.moved(5.0)
    assert [request.since_s for request in waiting.begun.values()] == [5.0, 5.0]
    assert [request.since_s for request in waiting.rooms.values()] == [0.0]


def test_a_chunk_has_window_pages_for_what_it_writes_and_sees() -> None:
    waiting = queue(20)
    waiting.pool = window_pool(50)
    waiting.begin(memory(Ledger(9), Ledger(9)))
    request = waiting.begun[key(1)]
    request.window = WindowTable(spare=(40, 41, 42, 43))
    seen = []
    for _ in range(5):
        (item,) = waiting.batch()
        seen.append((item.window_first, item.window))
        request.computed += len(item.tokens)
    assert seen[:3] == [(0, (40,)), (0, (40, 41)), (0, (40, 41, 42))]
    assert seen[3:] == [(1, (41, 42, 43)), (2, (42, 43, 40))]
    assert request.window.first == 1, "the room has more than a chunk is told"
