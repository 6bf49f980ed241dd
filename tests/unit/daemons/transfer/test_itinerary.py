"""What was planned for all layers is what is planned for each group of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.protocol.handshake import KvRegion
from daemons.transfer import plan
from daemons.transfer.backend import Copy, CopyTable
from daemons.transfer.itinerary import Itinerary, Part
from daemons.transfer.plan import Pairing, pairing
from daemons.transfer.slices import joined

LAYERS, POOL, PAGE_BYTES = 6, 12, 16


def paired(base: int) -> Pairing:
    def regions(first: int) -> list[KvRegion]:
        return [
            KvRegion(first + i * POOL * PAGE_BYTES, PAGE_BYTES, i // 2, i % 2, 0)
            for i in range(2 * LAYERS)
        ]

    return pairing(
        regions(base), regions(10 * base), source_pool_pages=POOL, target_pool_pages=POOL
    )


def itinerary(most_bytes: int) -> tuple[Itinerary, list[Copy]]:
    """Two layers send fewer pages than the others; all copies, sorted."""
    one, runs = paired(1 << 20), [([1, 2, 5], [3, 4, 8]), ([5], [8])]
    whole, few = (one.runs(*pages) for pages in runs)
    parts = [Part(range(2), one, whole), Part(range(2, 4), one, few), Part(range(4, 6), one, whole)]
    every = [c for part in parts for c in one.copies(part.runs, part.layers)]
    return Itinerary(parts, most_bytes), sorted(every)


def copies(slices: list[CopyTable]) -> list[Copy]:
    return [copy for part in slices for copy in part]


@given(st.lists(st.integers(1, LAYERS - 1), unique=True))
def test_groups_of_layers_add_up_to_all(ends: list[int]) -> None:
    planned, every = itinerary(1 << 20)
    edges = [0, *sorted(ends), LAYERS]
    groups = [range(a, b) for a, b in pairwise(edges)]
    found = [copy for group in groups for copy in copies(list(planned.slices(group)))]
    assert sorted(found) == every


def test_what_goes_at_once_was_cut_before(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, every = itinerary(100)
    for name in ("copies", "runs"):
        monkeypatch.setattr(plan.Pairing, name, None)
    slices = list(planned.slices(range(LAYERS)))
    assert all(part.total_bytes <= 100 for part in slices)
    assert joined(slices).total_bytes == sum(copy.bytes for copy in every)


def test_a_group_that_is_expected_was_cut_before(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, every = itinerary(100)
    found = list(planned.slices(range(1, 3)))
    planned.expect(range(1, 3))
    monkeypatch.setattr(Part, "copies", None)
    assert [list(part) for part in planned.slices(range(1, 3))] == [list(part) for part in found]
    planned.expect(range(LAYERS))
    assert sum(part.total_bytes for part in planned.slices(range(LAYERS))) == sum(
        copy.bytes for copy in every
    )


def test_columns_give_the_same_groups_as_combs(monkeypatch: pytest.MonkeyPatch) -> None:
    combs = itinerary(1 << 20)[0].slices(range(1, 5))
    monkeypatch.setattr(plan, "FEW_RUNS", -1)
    columns = itinerary(1 << 20)[0].slices(range(1, 5))
    assert all(part.combs is None for part in columns)
    assert sorted(copies(list(columns))) == sorted(copies(list(combs)))


def test_groups_are_cut_too() -> None:
    planned, _ = itinerary(100)
    slices = planned.slices(range(1, 3))
    assert len(slices) > 1
    assert all(part.total_bytes <= 100 for part in slices)


def test_where_nothing_travels_there_are_no_slices() -> None:
    one = paired(1 << 20)
    nothing = Itinerary([Part(range(LAYERS), one, one.runs((), ()))], 100)
    assert list(nothing.slices(range(LAYERS))) == []
    assert list(nothing.slices(range(2, 3))) == []
    assert list(Itinerary([], 100).slices(range(0))) == []
