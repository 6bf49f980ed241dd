"""The table turns round, and never over a page that a coming token sees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.kv.ledger import OutOfPages
from daemons.kv.runs import pages_for
from daemons.kv.window import Windows
from daemons.kv.window_pool import WindowPool
from daemons.kv.window_table import WindowTable, landed_at

POOL = WindowPool(Windows(4, (5,)), 99)


def test_pages_are_used_again_when_no_coming_token_sees_them() -> None:
    table = WindowTable(spare=(7, 8, 9))
    table.cover(POOL, 0, 8)
    assert (table.first, table.pages, table.spare) == (0, (7, 8), (9,))
    table.cover(POOL, 8, 9)
    assert (table.first, table.pages, table.spare) == (0, (7, 8, 9), ())
    table.cover(POOL, 9, 12)
    assert table.pages == (7, 8, 9), "what is there already changes nothing"
    table.cover(POOL, 12, 13)
    assert (table.first, table.pages) == (1, (8, 9, 7))


def test_a_page_that_is_only_read_is_left_alone() -> None:
    table = WindowTable(first=1, pages=(5, 6), spare=(7, 8), read={5, 6})
    assert table.own == (7, 8)
    table.cover(POOL, 12, 20)
    assert (table.first, table.pages, table.own) == (1, (5, 6, 7, 8), (7, 8))
    table.cover(POOL, 20, 21)
    assert (table.first, table.pages, table.own) == (4, (8, 7), (8, 7))


def test_too_few_pages_are_told_and_nothing_changes() -> None:
    table = WindowTable(spare=(7, 8))
    table.cover(POOL, 0, 7)
    with pytest.raises(OutOfPages, match="1 window pages wanted"):
        table.cover(POOL, 7, 9)
    assert (table.first, table.pages) == (0, (7, 8))


def test_what_has_landed_begins_where_the_prompts_next_token_looks() -> None:
    table = landed_at(2, 4, (7, 8, 9))
    assert (table.first, table.end, table.pages, table.spare) == (2, 4, (7, 8), (9,))
    assert table.part(2, 4) == (7, 8)
    assert table.part(3, 9) == (8,)
    assert table.part(4, 3) == ()


@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 9),
    st.lists(st.integers(1, 30), max_size=20),
    st.integers(0, 9),
)
def test_what_a_token_sees_is_where_it_was_written(
    window: int, chunk: int, page_size: int, steps: list[int], cached: int
) -> None:
    """As many pages as a room gets always suffice, whatever the steps are."""
    pool = WindowPool(Windows(page_size, (None, window)), 999)
    start = cached * page_size  # that much is read from a cache
    first = pool.first_needed(start)
    read = tuple(range(500, 500 + cached - first))
    own = tuple(range(pool.needed(chunk, 10**6)))
    table = WindowTable(first, read, own, set(read))
    held = {
        table.pages[at // page_size - first] * page_size + at % page_size: at
        for at in range(first * page_size, start)
    }
    for step in steps:
        end = start + min(step, chunk)
        table.cover(pool, start, end)
        assert set(table.own) == set(own), "pages neither come nor go"
        assert len(set(table.pages)) == len(table.pages)
        assert pages_for(end, page_size) <= table.end

        def place(at: int, now: WindowTable = table) -> int:
            page = at // page_size
            assert now.first <= page < now.end
            return now.pages[page - now.first] * page_size + at % page_size

        for at in range(start, end):
            assert place(at) < 500 * page_size, "what is only read is never written"
            held[place(at)] = at
        for token in range(start, end):
            for at in range(max(0, token - window + 1), token + 1):
                assert held[place(at)] == at
        start = end
