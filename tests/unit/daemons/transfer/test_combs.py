"""Copies as combs move what they would move one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.transfer import combs
from daemons.transfer.backend import Comb, Copy, table

BYTES = 400


def expanded(found: list[Comb]) -> list[Copy]:
    return [
        Copy(comb.source + i * comb.source_step, comb.target + i * comb.target_step, comb.length)
        for comb in found
        for i in range(comb.teeth)
    ]


copies = st.lists(
    st.builds(Copy, st.integers(0, 20), st.integers(0, 20), st.integers(1, 3)), max_size=12
)


@given(copies)
def test_combs_are_the_copies_in_their_order(some: list[Copy]) -> None:
    assert expanded(combs.combs(table(some))) == some


@given(st.integers(1, 6), st.integers(2, 9))
def test_the_regions_of_each_run_are_one_comb(runs: int, regions: int) -> None:
    each = [
        Copy(1000 * r + 7 * run * run, 5000 * r + 3 * run, 2 + run % 2)
        for run in range(runs)
        for r in range(regions)
    ]
    found = combs.combs(table(each))
    assert [comb.teeth for comb in found] == [regions] * runs


@given(st.integers(0, 90), st.integers(0, 90), st.integers(1, 20), st.integers(1, 9), st.data())
def test_each_piece_lands_where_it_belongs(
    source: int, target: int, length: int, teeth: int, data: st.DataObject
) -> None:
    source_step = data.draw(st.integers(0, 30))
    target_step = data.draw(st.integers(length, 30))
    here = np.random.default_rng(1).integers(1, 256, BYTES, dtype=np.uint8)
    there, expected = (np.zeros(BYTES, dtype=np.uint8) for _ in range(2))
    comb = Comb(source, target, length, teeth, source_step, target_step)
    for begin, end, count in expanded([comb]):
        expected[end : end + count] = here[begin : begin + count]
    at = here.ctypes.data + source, there.ctypes.data + target
    combs.copy(comb._replace(source=at[0], target=at[1]))
    assert np.array_equal(there, expected)


def test_pieces_may_lie_in_descending_order() -> None:
    here, there = np.arange(30, dtype=np.uint8), np.zeros(30, dtype=np.uint8)
    combs.copy(Comb(here.ctypes.data + 20, there.ctypes.data + 20, 5, 3, -10, -10))
    assert there.tolist() == [i if i % 10 < 5 else 0 for i in range(30)]


@pytest.mark.parametrize(("most", "teeth"), [(1, [1] * 5), (25, [2, 2, 1]), (1000, [5])])
def test_parts_hold_no_more_than_they_may_or_one_piece(most: int, teeth: list[int]) -> None:
    comb = Comb(1000, 9000, 10, 5, 100, 200)
    parts = list(comb.parts(most))
    assert [part.teeth for part in parts] == teeth
    assert expanded(parts) == expanded([comb])
    assert sum(part.bytes for part in parts) == comb.bytes == 50


@pytest.mark.parametrize("address", [4096, 1 << 46, 1 << 48, 1 << 56])
def test_memory_may_be_anywhere_that_a_processor_has_it(address: int) -> None:
    assert combs._view(address, 64, Comb(address, address, 16, 3)).ctypes.data == address
