"""Sums of pages do not depend on where they lie, and on every byte of them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from daemons.kv.stretch import Stretch
from daemons.kv.window import Windows
from daemons.kv.window_pool import WindowPool
from daemons.protocol.handshake import KvRegion
from daemons.protocol.metadata import ChunkSum
from daemons.transfer.sums import PageSums

PAGES, PAGE_BYTES, HEADS = 8, 32, 3


class Pool:
    """Regions of one layer with random pages."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        shape = (2, HEADS, PAGES, PAGE_BYTES)
        self.bytes = generator.integers(0, 256, shape, dtype=np.uint8)
        size = PAGES * PAGE_BYTES
        base = self.bytes.ctypes.data
        places = [(kind, head) for kind in (0, 1) for head in range(HEADS)]
        self.regions = [
            KvRegion(base + i * size, PAGE_BYTES, 0, kind, head)
            for i, (kind, head) in enumerate(places)
        ]
        self.sums = PageSums(self.regions[::-1], PAGES)


def text(*pages: int) -> Stretch:
    """A text that lies in these pages from its beginning."""
    return Stretch(0, pages)


def test_pages_that_were_copied_elsewhere_have_the_same_sum() -> None:
    ours, theirs = Pool(1), Pool(2)
    here, there = [1, 2, 5, 0], [7, 3, 4, 6]
    assert ours.sums.of(text(*here)) != theirs.sums.of(text(*there))
    theirs.bytes[:, :, there] = ours.bytes[:, :, here]
    assert ours.sums.of(text(*here)) == theirs.sums.of(text(*there))


def test_the_order_of_pages_counts() -> None:
    pool = Pool(1)
    assert pool.sums.of(text(1, 2)) != pool.sums.of(text(2, 1))


def test_a_flipped_bit_of_any_byte_is_seen_and_told_with_both_sums() -> None:
    pool = Pool(3)
    pages, chunks = (4, 5, 1, 7), [ChunkSum(0, 2, pool.sums.of(text(4, 5))), ChunkSum(2, 2, 0)]
    chunks[1] = chunks[1]._replace(sum=pool.sums.of(text(1, 7)))
    assert pool.sums.difference(text(*pages), chunks) == ""
    generator = np.random.default_rng(4)
    for at in generator.integers(0, 4 * PAGE_BYTES, 50).tolist():
        page, byte = pages[at // PAGE_BYTES], at % PAGE_BYTES
        kind, head = int(generator.integers(2)), int(generator.integers(HEADS))
        pool.bytes[kind, head, page, byte] ^= 1 << int(generator.integers(8))
        said = pool.sums.difference(text(*pages), chunks)
        chunk = chunks[at // PAGE_BYTES // 2]
        assert said.startswith(f"pages {chunk.first} to {chunk.first + 1} of 4: prefill's sum")
        assert f"{chunk.sum:016x}" in said
        pool.bytes[:] = Pool(3).bytes


def test_sums_of_pages_that_are_not_there_are_no_match() -> None:
    assert "they end at 3 here" in Pool(1).sums.difference(text(0, 1, 2), [ChunkSum(2, 2, 0)])


def test_memory_that_is_not_the_hosts_has_no_sums_and_says_so() -> None:
    sums = PageSums([KvRegion(4096, 32, 0, 0, 0)], 4)
    assert not sums.can_be_had
    assert "not the host's" in sums.difference(text(0), [ChunkSum(0, 1, 0)])


@pytest.mark.parametrize("pages", [(), (3,), (3, 4, 5), (5, 4), (1, 3, 5)])
def test_runs_are_only_a_faster_way(pages: tuple[int, ...]) -> None:
    pool = Pool(5)
    copied = Pool(6)
    copied.bytes[:, :, : len(pages)] = pool.bytes[:, :, list(pages)]
    assert pool.sums.of(text(*pages)) == copied.sums.of(text(*range(len(pages))))


def test_what_no_later_token_sees_is_left_out() -> None:
    pool = Pool(8)
    windowed = PageSums(pool.regions, PAGES, WindowPool(Windows(4, (5,))))
    right = windowed.of(text(1, 2, 3), 12)  # position 12 sees 8 to 12: the last page
    assert right == pool.sums.of(text(3))
    chunk = [ChunkSum(0, 3, right)]
    pool.bytes[:, :, 1:3] ^= 1
    assert windowed.difference(text(1, 2, 3), chunk, 12) == ""
    pool.bytes[:, :, 3] ^= 1
    assert "prefill's sum" in windowed.difference(text(1, 2, 3), chunk, 12)


def test_layers_with_a_window_are_summed_where_their_own_pages_are() -> None:
    full, narrow = Pool(8), Pool(9)
    regions = [*full.regions, *(region_of_layer(1, region) for region in narrow.regions)]
    both = PageSums(regions, PAGES, WindowPool(Windows(4, (None, 5)), PAGES))
    where = Stretch(1, (4, 5), 2, (7,))  # decode has text page 0; 12 tokens, the last page is seen
    chunks = [
        ChunkSum(1, 1, both.of(Stretch(1, (4,)), 12)),
        ChunkSum(2, 1, both.of(Stretch(2, (5,), 2, (7,)), 12)),
    ]
    assert both.difference(where, chunks, 12) == ""
    narrow.bytes[:, :, 7] ^= 1
    assert both.difference(where, chunks, 12).startswith("pages 2 to 2 of 3: prefill's sum")


def region_of_layer(layer: int, region: KvRegion) -> KvRegion:
    return msgspec.structs.replace(region, layer=layer)
