"""A window needs the pages that a later token sees, and no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.kv.window import first_needed_page


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
