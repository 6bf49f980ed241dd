"""Chunks of prompts share a step with running rooms, which go first."""

from __future__ import annotations

from daemons.decode.forward_queue import ForwardQueue
from daemons.decode.request import Request
from daemons.engine.config import EngineConfig
from daemons.engine.step import Result
from daemons.kv.window_table import WindowTable
from daemons.protocol.generate import TokenOut
from tests.support.cores import key, submit, window_pool


def queue(*prompts: int, **engine: int) -> ForwardQueue:
    """Rooms with prompts of so many tokens."""
    sizes = {"page_size": 4, "chunk_tokens": 8, "batch_tokens": 12, "batch_rooms": 4} | engine
    waiting = ForwardQueue(EngineConfig(**sizes))  # type: ignore[arg-type]
    for room, tokens in enumerate(prompts, 1):
        asked = submit(room, tokens, prefill="d0")
        pages = tuple(range(10 * room, 10 * room + -(-tokens // 4)))
        waiting.rooms[key(room)] = Request(asked, key(room), 0.0, 0.0, 9, pages=pages, local=True)
    return waiting


def sizes(waiting: ForwardQueue, rows: int) -> list[tuple[int, int]]:
    return [(item.key.room, len(item.tokens)) for item in waiting.step(rows)]


def test_a_chunk_has_the_next_tokens_and_the_pages_that_they_need() -> None:
    waiting = queue(10)
    (item,) = waiting.step(0)
    assert (item.tokens, item.start, item.pages) == (tuple(range(1, 9)), 0, (10, 11))
    assert not item.samples
    request = waiting.rooms[key(1)]
    assert request.in_steps == 1
    assert waiting.computed(request, Result(key(1)), 3.0) == 8
    (item,) = waiting.step(0)
    assert (item.tokens, item.start, item.pages) == ((9, 10), 8, (10, 11, 12))
    assert item.samples


def test_alone_prompts_share_the_tokens_of_a_batch() -> None:
    assert sizes(queue(20, 20, 20), rows=0) == [(1, 8), (2, 4)]


def test_beside_running_rooms_prompts_have_what_these_leave_of_a_chunk() -> None:
    assert sizes(queue(20, 20), rows=2) == [(1, 6)]
    assert sizes(queue(2, 20), rows=2) == [(1, 2), (2, 4)]


def test_a_page_of_a_prompt_is_computed_however_many_rooms_run() -> None:
    assert sizes(queue(20, 20), rows=100) == [(1, 4)]


def test_a_step_has_so_many_rooms_at_most() -> None:
    assert sizes(queue(1, 1, 1), rows=2) == [(1, 1), (2, 1)]


def test_a_chunk_of_one_room_is_progress_of_all() -> None:
    waiting = queue(4, 4)
    request = waiting.rooms[key(1)]
    waiting.step(0)
    judged = (TokenOut(1, -0.5),)
    waiting.computed(request, Result(key(1), TokenOut(3), judged), 7.0)
    assert [room.since_s for room in waiting.rooms.values()] == [7.0, 7.0]
    assert (request.prompt_logprobs, request.computed, request.chunk) == ([TokenOut(1, -0.5)], 4, 0)


def test_a_chunk_has_window_pages_for_what_it_writes_and_sees() -> None:
    waiting = queue(24)
    waiting.pool = window_pool(50)
    request = waiting.rooms[key(1)]
    request.window = WindowTable(spare=(40, 41, 42, 43))
    seen = []
    for _ in range(3):
        (item,) = waiting.step(0)
        seen.append((item.window_first, item.window))
        waiting.computed(request, Result(key(1)), 3.0)
    assert seen == [(0, (40, 41)), (0, (40, 41, 42, 43)), (2, (42, 43, 40, 41))]
