"""Copies put together and taken apart move the same bytes, in the same order."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.transfer.backend import Comb, Copy, CopyTable, table
from daemons.transfer.slices import cut, joined


def moved(slices: list[CopyTable]) -> list[tuple[int, int]]:
    """Return where each byte comes from and goes to, in order."""
    pieces = chain.from_iterable(slices)
    return [(c.source + i, c.target + i) for c in pieces for i in range(c.bytes)]


def check(whole: CopyTable, most: int) -> None:
    slices = cut(whole, most)
    assert all(0 < part.total_bytes <= most for part in slices)
    assert moved(slices) == moved([whole])
    assert all(2 * part.total_bytes > most for part in slices[:-1])


@given(st.lists(st.integers(1, 60), max_size=9), st.integers(3, 60))
def test_slices_of_columns_move_the_same_bytes_within_the_limit(
    lengths: list[int], most: int
) -> None:
    check(table([Copy(1000 * i + 1, 5000 * i + 1, n) for i, n in enumerate(lengths)]), most)


combs = st.builds(
    Comb,
    st.integers(1, 1000),
    st.integers(1, 1000),
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(-80, 80),
    st.integers(-80, 80),
)


@given(st.lists(combs, max_size=4), st.integers(3, 60))
def test_slices_of_combs_move_the_same_bytes_within_the_limit(some: list[Comb], most: int) -> None:
    check(CopyTable.of(some), most)
    assert all(part.combs is not None for part in cut(CopyTable.of(some), most))


@pytest.mark.parametrize(("most", "teeth"), [(250, [10]), (110, [4, 4, 2]), (225, [9, 1])])
def test_a_comb_is_cut_between_its_pieces_as_long_as_they_are_short(
    most: int, teeth: list[int]
) -> None:
    slices = cut(CopyTable.of([Comb(0, 0, 25, 10, 50, 50)]), most)
    assert [[comb.teeth for comb in part.combs or ()] for part in slices] == [[n] for n in teeth]


def test_joined_tables_have_the_copies_of_all_in_order() -> None:
    one, two = table([Copy(1, 2, 3)]), table([Copy(4, 5, 6), Copy(7, 8, 9)])
    assert list(joined([one, two])) == [Copy(1, 2, 3), Copy(4, 5, 6), Copy(7, 8, 9)]
    assert joined([one]) is one
    assert len(joined([])) == 0


def test_joined_combs_are_combs() -> None:
    one, two = Comb(1, 2, 3, 1), Comb(4, 5, 6, 2, 7, 8)
    assert joined([CopyTable.of([one]), CopyTable.of([two])]).combs == (one, two)
    assert joined([CopyTable.of([one]), table([Copy(1, 2, 3)])]).combs is None
