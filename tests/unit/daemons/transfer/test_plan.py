"""From regions and pages to copies."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from daemons.protocol.handshake import KvRegion
from daemons.transfer import plan
from daemons.transfer.backend import BadCopy, Copy
from daemons.transfer.plan import copies, pairing

PAGE_BYTES = 16
POOL = 12


def pool(base: int, heads: range, layers: int = 1, page_bytes: int = PAGE_BYTES) -> list[KvRegion]:
    """Regions one after the other, as a head-major pool has them."""
    places = [(layer, kind, h) for layer in range(layers) for kind in (0, 1) for h in heads]
    return [
        KvRegion(base + i * POOL * page_bytes, page_bytes, *place) for i, place in enumerate(places)
    ]


def planned(
    sources: list[KvRegion], targets: list[KvRegion], here: list[int], there: list[int]
) -> list[Copy]:
    return copies(sources, targets, here, there, source_pool_pages=POOL, target_pool_pages=POOL)


def moved(plan: list[Copy]) -> dict[int, int]:
    """Return where each target byte comes from."""
    return {c.target + i: c.source + i for c in plan for i in range(c.bytes)}


def page_by_page(
    sources: list[KvRegion], targets: list[KvRegion], here: list[int], there: list[int]
) -> list[Copy]:
    return [
        Copy(s.address + p * s.page_bytes, t.address + q * t.page_bytes, s.page_bytes)
        for s in sources
        for t in targets
        if (s.layer, s.kind, s.head) == (t.layer, t.kind, t.head)
        for p, q in zip(here, there, strict=True)
    ]


@st.composite
def pages(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Runs and single pages, each target page at most once."""
    there = draw(st.lists(st.integers(0, POOL - 1), max_size=POOL, unique=True))
    shift = draw(st.integers(0, 3))
    stray = st.one_of(st.just(None), st.integers(0, POOL - 1))
    here = [draw(stray) for _ in there]
    return [(q + shift) % POOL if p is None else p for p, q in zip(here, there, strict=True)], there


@given(pages=pages(), ours=st.integers(0, 3), theirs=st.integers(0, 3), layers=st.integers(1, 2))
def test_merged_copies_move_the_same_bytes_as_page_by_page_and_cannot_be_merged_further(
    pages: tuple[list[int], list[int]], ours: int, theirs: int, layers: int
) -> None:
    here, there = pages
    sources = pool(1000, range(ours, ours + 2), layers)
    targets = pool(100_000, range(theirs, theirs + 4), layers)
    plan = planned(sources, targets, here, there)
    expected = page_by_page(sources, targets, here, there)
    assert moved(plan) == moved(expected)
    assert sum(c.bytes for c in plan) == PAGE_BYTES * len(expected)
    edges = {t.address for t in targets}  # copies never reach from one region to another
    starts = {(c.source, c.target) for c in plan if c.target not in edges}
    assert not [c for c in plan if (c.source + c.bytes, c.target + c.bytes) in starts]


def test_neighbouring_pages_on_both_sides_become_one_copy() -> None:
    sources, targets = pool(1000, range(1)), pool(9000, range(1))
    plan = planned(sources[:1], targets[:1], [2, 3, 4, 8], [5, 6, 7, 8])
    assert plan == [Copy(1032, 9080, 48), Copy(1128, 9128, 16)]


def test_pages_in_descending_order_become_one_copy() -> None:
    plan = planned(pool(1000, range(1))[:1], pool(9000, range(1))[:1], [4, 3, 2], [7, 6, 5])
    assert plan == [Copy(1032, 9080, 48)]


def test_copies_come_by_the_peers_page_then_by_layer_one_step_apart() -> None:
    sources, targets = pool(1000, range(2), layers=3), pool(100_000, range(2), layers=3)
    plan = planned(sources[::-1], targets, [0, 4, 9], [9, 5, 1])
    region_bytes = targets[1].address - targets[0].address
    regions = [r.address for r in targets]
    assert [c.target for c in plan] == [
        at + page * PAGE_BYTES for page in (1, 5, 9) for at in regions
    ]
    assert {other.target - one.target for one, other in pairwise(plan[:12])} == {region_bytes}


@given(pages=pages())
def test_a_few_pages_are_planned_as_many_are(pages: tuple[list[int], list[int]]) -> None:
    here, there = pages
    sources, targets = pool(1000, range(2), layers=2), pool(100_000, range(2), layers=2)
    few = planned(sources, targets, here, there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "FEW_PAGES", 0)
        assert planned(sources, targets, here, there) == few


def test_unequal_tensor_parallel_sizes_meet_in_the_heads_that_both_hold() -> None:
    ours, theirs = pool(1000, range(4)), pool(100_000, range(2, 4))
    plan = planned(ours, theirs, [0], [3])
    heads = {r.address: r.head for r in ours}
    assert [heads[c.source] for c in plan] == [2, 3, 2, 3]
    assert planned(pool(1000, range(2)), theirs, [0], [3]) == []


def test_no_pages_are_no_copies() -> None:
    assert planned(pool(1000, range(1)), pool(9000, range(1)), [], []) == []


@pytest.mark.parametrize(
    ("here", "there", "story"),
    [
        ([0, 1], [0], "2 source pages for 1 target pages"),
        ([POOL], [0], f"source page {POOL} is outside a pool of {POOL} pages"),
        ([-1], [0], "source page -1"),
        ([0], [POOL], f"target page {POOL}"),
        ([0], [-1], "target page -1"),
        ([0, 1, 2], [4, 5, 4], "target page 4 is named twice"),
    ],
)
def test_bad_pages_are_refused_with_the_values(
    here: list[int], there: list[int], story: str
) -> None:
    with pytest.raises(BadCopy, match=story):
        planned(pool(1000, range(1)), pool(9000, range(1)), here, there)


def test_bad_pages_are_refused_even_where_no_head_is_shared() -> None:
    with pytest.raises(BadCopy, match="target page 99"):
        planned(pool(1000, range(1)), pool(9000, range(1, 2)), [0], [99])


def test_page_sizes_that_differ_are_refused_with_both() -> None:
    with pytest.raises(BadCopy, match="16 bytes at the source and 32 at the target"):
        planned(pool(1000, range(1)), pool(9000, range(1), page_bytes=32), [0], [0])


def test_a_head_named_twice_is_refused() -> None:
    twice = pool(9000, range(1)) + pool(20_000, range(1))
    with pytest.raises(BadCopy, match="4 target regions name only 2 heads"):
        planned(pool(1000, range(1)), twice, [0], [0])


@pytest.mark.parametrize(("address", "page_bytes"), [(2**63 - 1, 16), (16, 2**50 - 1)])
def test_a_region_past_the_end_of_memory_is_refused_before_any_arithmetic(
    address: int, page_bytes: int
) -> None:
    region = [KvRegion(address, page_bytes, 0, 0, 0)]
    ours = [KvRegion(1000, page_bytes, 0, 0, 0)]
    with pytest.raises(BadCopy, match="target's memory"):
        copies(ours, region, [0], [0], source_pool_pages=1, target_pool_pages=1 << 20)


def test_some_layers_of_a_write_are_a_part_of_all() -> None:
    sources, targets = pool(1000, range(2), layers=4), pool(100_000, range(2), layers=4)
    paired = pairing(sources, targets, source_pool_pages=POOL, target_pool_pages=POOL)
    runs = paired.runs([1, 2, 5], [3, 4, 8])
    parts = [list(paired.copies(runs, layers)) for layers in (range(1), range(1, 3), range(3, 4))]
    assert sorted(copy for part in parts for copy in part) == sorted(paired.copies(runs))
    assert [len(part) for part in parts] == [8, 16, 8]


def test_a_layer_that_lies_apart_is_no_comb_with_others_and_one_alone() -> None:
    sources, targets = pool(1000, range(2), layers=2), pool(100_000, range(2), layers=2)
    apart = [replace(r, address=r.address + 8 * r.layer) for r in targets]
    paired = pairing(sources, apart, source_pool_pages=POOL, target_pool_pages=POOL)
    runs = paired.runs([1, 2, 5], [3, 4, 8])
    assert paired.copies(runs).combs is None
    both = [paired.copies(runs, range(layer, layer + 1)) for layer in (0, 1)]
    assert all(part.combs is not None for part in both)
    assert both[0].combs == paired.copies(runs, range(1)).combs
    assert sorted(c for part in both for c in part) == sorted(paired.copies(runs))
    assert len(paired.copies(runs, range(2, 9))) == 0


def test_a_peer_with_other_layers_gets_those_that_both_have() -> None:
    sources = [r for r in pool(1000, range(1), layers=6) if r.layer % 2]
    targets = pool(100_000, range(1), layers=6)
    paired = pairing(sources, targets, source_pool_pages=POOL, target_pool_pages=POOL)
    runs = paired.runs((1, 2), (3, 4))
    found = [len(paired.copies(runs, range(layer, layer + 1))) for layer in range(7)]
    assert found == [0, 2, 0, 2, 0, 2, 0]
    nothing = pairing([], targets, source_pool_pages=POOL, target_pool_pages=POOL)
    assert len(nothing.copies(nothing.runs((1,), (1,)), range(3))) == 0


@given(pages=pages(), layers=st.integers(1, 3))
def test_combs_are_the_copies_that_columns_are(
    pages: tuple[list[int], list[int]], layers: int
) -> None:
    sources, targets = pool(1000, range(2), layers), pool(100_000, range(2), layers)
    paired = pairing(sources, targets, source_pool_pages=POOL, target_pool_pages=POOL)
    runs = paired.runs(*pages)
    combs = paired.copies(runs)
    assert combs.combs is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "FEW_RUNS", -1)
        columns = paired.copies(runs)
    assert columns.combs is None
    assert list(columns) == list(combs)


def test_the_same_pages_are_gone_through_once() -> None:
    sources, targets = pool(1000, range(2)), pool(100_000, range(2))
    paired = pairing(sources, targets, source_pool_pages=POOL, target_pool_pages=POOL)
    here, there = (1, 2, 3), (4, 5, 7)
    first = paired.runs(here, there)
    assert paired.runs(here, there) is first
    assert paired.runs((1, 2, 4), there).pages == [2, 1]
    assert paired.runs(here, there) == first
