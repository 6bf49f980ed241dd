"""Free indices as runs of neighbours."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.kv.runs import FreeRuns, joined, pages_for


def test_what_is_taken_from_a_fresh_pool_lies_together() -> None:
    assert FreeRuns(10).take(4) == (0, 1, 2, 3)


def test_the_tightest_run_that_fits_is_used() -> None:
    runs = FreeRuns(10)
    runs.take(10)
    runs.give([0, 1, 2, 3, 5, 6])
    assert runs.take(2) == (5, 6)


def test_the_longest_run_is_used_first_where_none_fits() -> None:
    runs = FreeRuns(10)
    runs.take(10)
    runs.give([0, 2, 3, 4, 6, 7])
    assert runs.take(5) == (2, 3, 4, 6, 7)


def test_what_comes_back_joins_both_neighbours() -> None:
    runs = FreeRuns(6)
    taken = runs.take(6)
    runs.give([0, 1, 3, 4])
    assert runs.runs() == ((0, 2), (3, 2))
    runs.give([2])
    assert runs.runs() == ((0, 5),)
    runs.give([5])
    assert runs.runs() == ((0, len(taken)),)


def test_taking_nothing_takes_nothing() -> None:
    runs = FreeRuns(3)
    assert runs.take(0) == ()
    assert len(runs) == 3


def test_more_than_is_free_is_refused_and_changes_nothing() -> None:
    runs = FreeRuns(3)
    with pytest.raises(ValueError, match="4 wanted, 3 free"):
        runs.take(4)
    assert runs.runs() == ((0, 3),)


def test_an_empty_pool_has_no_runs() -> None:
    assert FreeRuns(0).runs() == ()


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=30))
@settings(deadline=None)
def test_the_runs_are_always_the_free_ones_sorted_and_apart(
    size: int, steps: list[tuple[bool, int]]
) -> None:
    runs, held = FreeRuns(size), list[int]()
    for takes, count in steps:
        if takes and count <= len(runs):
            taken = runs.take(count)
            assert len(taken) == count
            assert not set(taken) & set(held)
            held += taken
        elif not takes:
            runs.give(held[:count])
            del held[:count]
        free = sorted(set(range(size)) - set(held))
        assert runs.runs() == tuple(joined(free))
        assert len(runs) == len(free)


@given(st.sets(st.integers(0, 50)))
@settings(deadline=None)
def test_joined_runs_hold_exactly_the_indices(indices: set[int]) -> None:
    runs = joined(indices)
    held = [index for start, length in runs for index in range(start, start + length)]
    assert held == sorted(indices)
    ends = [start + length for start, length in runs]
    assert all(end < start for end, (start, _) in zip(ends, runs[1:], strict=False))


@pytest.mark.parametrize(
    ("tokens", "page_size", "pages"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (3, 1, 3)]
)
def test_a_page_that_is_begun_counts_whole(tokens: int, page_size: int, pages: int) -> None:
    assert pages_for(tokens, page_size) == pages
