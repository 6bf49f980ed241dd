"""Tables that fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.widths import GAP, LEAST, cut, kept, natural

COLUMNS = ("NAME", "HOST", "UP")


def test_a_column_wants_what_its_longest_cell_wants() -> None:
    assert natural(COLUMNS, [["a", "bbbbbb", ""], ["aa", "b", "3m10s"]]) == [4, 6, 5]
    assert natural(COLUMNS, []) == [4, 4, 2]


@pytest.mark.parametrize(
    ("width", "names"), [(19, "NAME HOST UP"), (18, "NAME HOST"), (11, "NAME"), (1, "NAME")]
)
def test_spare_columns_go_in_their_order(width: int, names: str) -> None:
    stay = kept(COLUMNS, [4, 6, 5], ("UP", "HOST"), width)
    assert [COLUMNS[at] for at in stay] == names.split()


def test_the_widest_are_cut_and_numbers_stay_whole() -> None:
    assert cut([4, 30, 20], 44) == [4, 18, 18]


@given(st.lists(st.integers(0, 60), max_size=6), st.integers(0, 200))
def test_what_is_cut_fits_where_that_is_possible(wants: list[int], width: int) -> None:
    widths = cut(wants, width)
    gaps = GAP * max(len(wants) - 1, 0)
    least = sum(min(want, LEAST) for want in wants)
    assert sum(widths) + gaps <= max(width, least + gaps)
    assert all(got <= want for got, want in zip(widths, wants, strict=True))
