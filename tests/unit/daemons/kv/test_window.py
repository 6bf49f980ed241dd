"""A window needs the pages that a later token sees, and no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.kv.window import ALL_SEEN, Windows, first_needed_page, window_pages_needed


@pytest.mark.parametrize(
    ("tokens", "window", "first"),
    [(10, None, 0), (10, 100, 0), (10, 11, 0), (10, 7, 1), (10, 6, 1), (11, 4, 2), (10, 1, 2)],
)
def test_the_first_page_is_the_one_of_the_first_token_that_is_seen(
    tokens: int, window: int | None, first: int
) -> None:
    assert first_needed_page(tokens, window, 4) == first


@given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 64))
def test_what_is_needed_is_what_the_next_token_sees(
    tokens: int, window: int, page_size: int
) -> None:
    seen = [position for position in range(tokens + 1) if tokens - position < window]
    assert first_needed_page(tokens, window, page_size) == seen[0] // page_size


def test_neighbours_with_the_same_window_go_together() -> None:
    windows = Windows(4, (5, 5, None, 5))
    assert [*windows.alike(range(4))] == [range(2), range(2, 3), range(3, 4)]
    assert [*windows.alike(range(1, 1))] == []
    assert [*ALL_SEEN.alike(range(3))] == [range(3)]


def test_what_is_not_seen_is_counted_from_where_a_write_begins() -> None:
    windows = Windows(4, (5, None))
    assert [windows.unseen(0, first, 20) for first in (0, 3, 4, 9)] == [4, 1, 0, 0]
    assert windows.unseen(1, 0, 20) == 0
    assert windows
    assert not ALL_SEEN
    assert not Windows(4, (None, None))


@given(st.integers(1, 100), st.integers(1, 60), st.integers(1, 40))
def test_a_room_needs_as_many_pages_as_the_worst_of_its_chunks(
    window: int, chunk_tokens: int, page_size: int
) -> None:
    held = []
    for start in range(window - 1, window - 1 + page_size):  # it repeats from there on
        seen = range(start - window + 1, start + chunk_tokens)
        held.append(len({position // page_size for position in seen}))
    assert window_pages_needed(window, chunk_tokens, page_size) == max(held)


@given(st.integers(0, 300), st.integers(1, 60), st.integers(1, 60), st.integers(1, 40))
def test_no_chunk_needs_more_pages_than_that(
    start: int, tokens: int, window: int, page_size: int
) -> None:
    first = first_needed_page(start, window, page_size)
    held = (start + tokens - 1) // page_size + 1 - first
    assert held <= window_pages_needed(window, tokens, page_size)
