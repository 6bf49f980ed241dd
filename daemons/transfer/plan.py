"""Which bytes go where: from two lists of regions and two lists of pages to copies.

Regions pair by (layer, kind, head). Heads are counted over the whole model, so ranks of unequal
tensor-parallel sizes meet in the heads that both hold, and nothing needs to be gathered. Pages
that are neighbours on both sides become one copy; copies never reach from one region to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from daemons.protocol.handshake import KvRegion
from daemons.transfer.backend import BadCopy, Copy
from daemons.transfer.memory import ADDRESS_LIMIT

Integers = npt.NDArray[np.int64]


class Runs(NamedTuple):
    """Neighbouring pages, as columns ``[runs]``: first page here, first page there, pages."""

    source: Integers
    target: Integers
    pages: Integers


def copies(
    sources: Sequence[KvRegion],
    targets: Sequence[KvRegion],
    source_pages: Sequence[int],
    target_pages: Sequence[int],
    *,
    source_pool_pages: int,
    target_pool_pages: int,
) -> list[Copy]:
    """Return the copies that bring ``source_pages[i]`` to ``target_pages[i]`` for every i.

    Args:
        sources: regions of this rank.
        targets: regions that the peer registered; those without a partner here are let be.
        source_pages: page indices here, shape ``[pages]``.
        target_pages: page indices at the peer, same shape, no index twice.
        source_pool_pages: pages in each region here.
        target_pool_pages: pages in each region of the peer.

    Returns:
        Copies by layer, kind and head, then by the peer's page; as few as possible.

    Raises:
        BadCopy: lengths or page sizes differ, a page is outside its pool or named twice, or a
            region is named twice or ends past the end of memory.
    """
    pairs = _pairs(sources, targets, source_pool_pages, target_pool_pages)
    runs = _runs(
        _pages(source_pages, source_pool_pages, "source"),
        _pages(target_pages, target_pool_pages, "target"),
    )
    if not pairs or not len(runs.pages):
        return []
    bases = np.array([(s.address, t.address, s.page_bytes) for s, t in pairs], dtype=np.int64)
    here, there, page_bytes = bases[:, 0:1], bases[:, 1:2], bases[:, 2:3]  # [regions, 1]
    columns = (
        here + runs.source * page_bytes,  # [regions, runs]
        there + runs.target * page_bytes,
        runs.pages * page_bytes,
    )
    return [Copy(*row) for row in zip(*(c.ravel().tolist() for c in columns), strict=True)]


def _pairs(
    sources: Sequence[KvRegion],
    targets: Sequence[KvRegion],
    source_pool_pages: int,
    target_pool_pages: int,
) -> list[tuple[KvRegion, KvRegion]]:
    here = _by_place(sources, source_pool_pages, "source")
    there = _by_place(targets, target_pool_pages, "target")
    pairs = [(here[place], there[place]) for place in sorted(here.keys() & there.keys())]
    for source, target in pairs:
        if source.page_bytes != target.page_bytes:
            raise BadCopy(
                f"a page of layer {source.layer} kind {source.kind} head {source.head} has"
                f" {source.page_bytes} bytes at the source and {target.page_bytes} at the target"
            )
    return pairs


def _by_place(
    regions: Sequence[KvRegion], pool_pages: int, side: str
) -> dict[tuple[int, int, int], KvRegion]:
    places = {(region.layer, region.kind, region.head): region for region in regions}
    if len(places) != len(regions):
        raise BadCopy(f"{len(regions)} {side} regions name only {len(places)} heads")
    for region in regions:
        if region.address + region.page_bytes * pool_pages > ADDRESS_LIMIT:
            raise BadCopy(
                f"{pool_pages} pages of {region.page_bytes} bytes from {region.address:#x}"
                f" do not fit into the {side}'s memory"
            )
    return places


def _pages(pages: Sequence[int], pool_pages: int, side: str) -> Integers:
    column = np.asarray(pages, dtype=np.int64)
    outside = column[(column < 0) | (column >= pool_pages)]
    if len(outside):
        raise BadCopy(f"{side} page {outside[0]} is outside a pool of {pool_pages} pages")
    return column


def _runs(source: Integers, target: Integers) -> Runs:
    if len(source) != len(target):
        raise BadCopy(f"{len(source)} source pages for {len(target)} target pages")
    order = np.argsort(target, kind="stable")
    source, target = source[order], target[order]
    steps = np.diff(target)
    if (steps == 0).any():
        raise BadCopy(f"target page {target[1:][steps == 0][0]} is named twice")
    breaks = np.flatnonzero((steps != 1) | (np.diff(source) != 1)) + 1
    starts = np.concatenate(([0], breaks)) if len(target) else np.empty(0, dtype=np.int64)
    lengths = np.diff(np.append(starts, len(target))) if len(target) else starts
    return Runs(source[starts], target[starts], lengths)
