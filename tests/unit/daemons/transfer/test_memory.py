"""Registered memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.transfer.backend import BadCopy, Copy, Region
from daemons.transfer.memory import ADDRESS_LIMIT, Registered


def registered(*regions: tuple[int, int]) -> Registered:
    memory = Registered()
    memory.add([Region(*region) for region in regions])
    return memory


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    gaps=st.lists(st.integers(0, 5), min_size=5, max_size=5),
    address=st.integers(0, 150),
    length=st.integers(1, 30),
)
def test_a_range_is_held_exactly_when_one_region_has_all_its_bytes(
    lengths: list[int], gaps: list[int], address: int, length: int
) -> None:
    regions, start = [], 1
    for size, gap in zip(lengths, gaps, strict=False):
        regions.append((start + gap, size))
        start += gap + size
    wanted = set(range(address, address + length))
    held = any(wanted <= set(range(start, start + size)) for start, size in regions)
    assert registered(*reversed(regions)).holds(address, length) == held


@pytest.mark.parametrize(
    "region", [(0, 1), (-1, 1), (1, 0), (1, -1), (ADDRESS_LIMIT, 1), (12, 1), (5, 6), (5, 100)]
)
def test_an_impossible_or_overlapping_region_is_refused_and_changes_nothing(
    region: tuple[int, int],
) -> None:
    memory = registered((10, 10))
    with pytest.raises(ValueError, match="region"):
        memory.add([Region(30, 1), Region(*region)])
    assert memory.regions == [Region(10, 10)]


def test_regions_that_touch_stay_two() -> None:
    memory = registered((10, 10), (20, 10))
    assert memory.holds(20, 10)
    assert not memory.holds(19, 2)


@pytest.mark.parametrize(
    "copy",
    [
        Copy(10, 1, 0),
        Copy(10, 1, -1),
        Copy(10, 0, 1),
        Copy(10, -5, 1),
        Copy(10, ADDRESS_LIMIT, 1),
        Copy(9, 1, 1),
        Copy(20, 1, 1),
        Copy(-10, 1, 1),
        Copy(15, 1, 6),
    ],
)
def test_a_copy_that_the_transport_must_not_see_is_refused(copy: Copy) -> None:
    with pytest.raises(BadCopy, match="copy 1 of 2"):
        registered((10, 10)).check_sources([Copy(10, 1, 10), copy])


def test_a_copy_up_to_the_last_byte_of_memory_passes() -> None:
    registered((10, 10)).check_sources([Copy(19, ADDRESS_LIMIT - 1, 1)])
