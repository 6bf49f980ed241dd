"""What is computed is handed over once, whole pages first, the row last."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.kv.window_table import WindowTable
from daemons.prefill.inflight_queue import InflightQueue, next_write
from daemons.prefill.request import Request
from daemons.protocol.generate import TokenOut
from daemons.protocol.metadata import RowState, unpack
from tests.support.cores import D_OTHER, D, destination, key, submit, window_pool


def request(tokens: int, prefix: int = 0) -> Request:
    pages = -(-tokens // 4)
    where = destination(
        tokens=tokens, prefix_tokens=prefix, pages=tuple(range(20, 20 + pages - prefix // 4))
    )
    return Request(submit(tokens=tokens), key(), 0.0, 0.0, where, tuple(range(pages)), row=2)


def test_a_page_that_is_not_full_waits() -> None:
    room = request(10)
    room.computed = 3
    assert next_write(room, 4) is None
    room.computed = 7
    write = next_write(room, 4)
    assert write is not None
    assert (write.source_pages, write.target_pages, write.row) == ((0,), (20,), None)
    assert next_write(room, 4) is None


def test_the_last_write_has_the_rest_and_the_row() -> None:
    room = request(10)
    room.computed = 10
    room.first = TokenOut(5)
    write = next_write(room, 4)
    assert write is not None
    assert (write.source_pages, write.target_pages) == ((0, 1, 2), (20, 21, 22))
    assert (write.peer, write.source_row, write.target_row) == (D, 2, 3)
    assert write.row is not None
    assert unpack(write.row, key())[0] is RowState.RIGHT


def test_the_row_is_written_even_when_no_page_is_left() -> None:
    room = request(8, prefix=8)
    room.computed = 8
    room.first = TokenOut(5)
    write = next_write(room, 4)
    assert write is not None
    assert (write.source_pages, write.target_pages) == ((), ())
    assert write.row is not None


def test_pages_that_decode_has_already_are_passed_over() -> None:
    room = request(10, prefix=4)
    room.computed = 8
    write = next_write(room, 4)
    assert write is not None
    assert (write.source_pages, write.target_pages) == ((1,), (20,))


def test_pages_of_the_next_chunk_are_handed_over_with_its_forward_and_the_row_later() -> None:
    room = request(10)
    room.computed, room.step_tokens = 3, 4
    write = next_write(room, 4, 1)
    assert write is not None
    assert (write.source_pages, write.target_pages, write.step) == ((0,), (20,), 1)
    room.computed, room.step_tokens = 7, 3
    write = next_write(room, 4, 2)
    assert write is not None
    assert (write.source_pages, write.row) == ((1, 2), None)  # the last page is not full
    room.computed, room.step_tokens, room.first = 10, 0, TokenOut(5)
    write = next_write(room, 4)
    assert write is not None
    assert (write.source_pages, write.target_pages, write.step) == ((), (), 0)
    assert write.row is not None


@given(st.integers(1, 40), st.integers(0, 10), st.lists(st.integers(1, 9), max_size=40))
@settings(deadline=None)
def test_every_page_behind_the_prefix_is_written_once_and_in_order(
    tokens: int, prefix_pages: int, chunks: list[int]
) -> None:
    room = request(tokens, prefix=min(prefix_pages, tokens // 4) * 4)
    sources: list[int] = []
    targets: list[int] = []
    for chunk in [*chunks, tokens]:
        room.computed = min(tokens, room.computed + chunk)
        if room.computed == tokens:
            room.first = TokenOut(1)
        if (write := next_write(room, 4)) is not None:
            sources += write.source_pages
            targets += write.target_pages
        if room.first is not None:
            assert write is not None
            assert write.row is not None
            break
    assert room.destination is not None
    assert tuple(targets) == room.destination.pages
    assert tuple(sources) == room.pages[room.destination.prefix_tokens // 4 :]


@pytest.mark.parametrize(("peer", "since_s"), [(D, 9.0), (D_OTHER, 0.0)])
def test_a_lane_that_moves_is_progress_of_its_own_rooms(peer: object, since_s: float) -> None:
    queue = InflightQueue({key(): request(4)})
    queue.lane_moved(peer, 9.0)  # type: ignore[arg-type]
    assert queue.rooms[key()].since_s == since_s


def test_of_window_pages_only_those_leave_that_are_seen_from_behind_the_prompt() -> None:
    room = request(14)
    assert room.destination is not None
    room.destination = msgspec.structs.replace(room.destination, window_pages=(30, 31))
    room.window, pool = WindowTable(0, (40, 41, 42, 43)), window_pool(50)
    room.computed = 8
    write = next_write(room, 4, 0, pool)
    assert write is not None
    assert (write.source_pages, write.source_window, write.target_window) == ((0, 1), (), ())
    room.computed, room.first = 14, TokenOut(5)
    write = next_write(room, 4, 0, pool)
    assert write is not None
    assert (write.first, write.source_pages, write.target_pages) == (2, (2, 3), (22, 23))
    assert (write.window_first, write.source_window, write.target_window) == (2, (42, 43), (30, 31))


def test_window_pages_of_a_prefix_that_decode_has_are_sent_all_the_same() -> None:
    room = request(12, prefix=12)
    assert room.destination is not None
    room.destination = msgspec.structs.replace(room.destination, window_pages=(30, 31))
    room.window, pool = WindowTable(1, (41, 42)), window_pool(50)
    room.computed = 8
    write = next_write(room, 4, 0, pool)
    assert write is not None
    assert (write.source_pages, write.target_pages) == ((), ())
    assert (write.window_first, write.source_window, write.target_window) == (1, (41,), (30,))
