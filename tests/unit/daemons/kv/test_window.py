"""A window needs the pages that a later token sees, and no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.kv.window import ALL_SEEN, Windows, first_needed_page


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
