"""Which bytes go where: from two lists of regions and two lists of pages to copies.

Regions pair by (layer, kind, head). Heads are counted over the whole model, so ranks of unequal
tensor-parallel sizes meet in the heads that both hold, and nothing needs to be gathered. Pages
that are neighbours on both sides become one copy; copies never reach from one region to another.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from daemons.protocol.handshake import KvRegion
from daemons.transfer.backend import BadCopy, Comb, Copy, CopyTable, Integers
from daemons.transfer.combs import combs
from daemons.transfer.memory import ADDRESS_LIMIT

FEW_PAGES = 96  # that a plain loop goes through faster than numpy
FEW_RUNS = 16  # the same
NOTHING = CopyTable.of(())


class Runs(NamedTuple):
    """Neighbouring pages, as columns ``[runs]``: first page here, first page there, pages."""

    source: Integers | list[int]
    target: Integers | list[int]
    pages: Integers | list[int]


class _Pairs(NamedTuple):
    """Pairs of regions, as columns ``[pairs]``, and the same as a comb of bytes.

    Of the page sizes there is only one if all are the same; there is no comb where they are not, or
    where the regions do not lie equal steps apart.
    """

    source: Integers
    target: Integers
    page_bytes: Integers
    comb: Comb | None


class _Planned(NamedTuple):
    """Pages and their runs; the same objects are the same pages, for who asks has tuples."""

    source_pages: Sequence[int]
    target_pages: Sequence[int]
    runs: Runs


@dataclass(frozen=True, slots=True)
class Pairing:
    """Regions of two processes that hold the same heads, computed once for a peer.

    Attributes:
        layers: layer of each pair, ascending, shape ``[pairs]``.
        source: where our region begins, ``[pairs]``.
        target: where the peer's region begins, ``[pairs]``.
        page_bytes: of both, ``[pairs]``.
        source_pages: pages in each region here.
        target_pages: pages in each region of the peer.
    """

    layers: Integers
    source: Integers
    target: Integers
    page_bytes: Integers
    source_pages: int
    target_pages: int
    _whole: _Pairs
    _starts: list[int]  # position of each layer's first pair, and of the end, ``[layers + 1]``
    _apart: dict[tuple[int, int], _Pairs] = field(default_factory=dict)  # asked for
    _last: list[_Planned] = field(default_factory=list)  # of a write that goes layer by layer

    def runs(self, source_pages: Sequence[int], target_pages: Sequence[int]) -> Runs:
        """Return the runs that bring ``source_pages[i]`` to ``target_pages[i]`` for every i.

        Args:
            source_pages: page indices here, shape ``[pages]``.
            target_pages: page indices at the peer, same shape, no index twice.

        Raises:
            BadCopy: lengths differ, or a page is outside its pool or named twice.
        """
        if self._last:
            last = self._last[0]
            if last.source_pages is source_pages and last.target_pages is target_pages:
                return last.runs
        runs = self._runs(source_pages, target_pages)
        if isinstance(source_pages, tuple) and isinstance(target_pages, tuple):
            self._last[:] = [_Planned(source_pages, target_pages, runs)]
        return runs

    def _runs(self, source_pages: Sequence[int], target_pages: Sequence[int]) -> Runs:
        count = len(source_pages)
        if count == len(target_pages) and _is_run(source_pages) and _is_run(target_pages):
            first, then = source_pages[0], target_pages[0]
            if 0 <= first <= self.source_pages - count and 0 <= then <= self.target_pages - count:
                return Runs([first], [then], [count])
        few = 0 < count == len(target_pages) <= FEW_PAGES
        if few and self._are_ours(source_pages, target_pages):
            runs = _few_runs(source_pages, target_pages)
            if runs is not None:
                return runs
        return _runs(
            _pages(source_pages, self.source_pages, "source"),
            _pages(target_pages, self.target_pages, "target"),
        )

    def _are_ours(self, source_pages: Sequence[int], target_pages: Sequence[int]) -> bool:
        return (
            min(source_pages) >= 0
            and min(target_pages) >= 0
            and max(source_pages) < self.source_pages
            and max(target_pages) < self.target_pages
        )

    def copies(self, runs: Runs, layers: range | None = None) -> CopyTable:
        """Return the copies of these runs by the peer's page, then by layer, kind and head.

        So the copies of a run lie one step apart, on both sides, and can be made in one go.
        ``layers`` are those to be sent, one after the other; None: all.
        """
        begin, end = (0, len(self.layers)) if layers is None else self.span(layers)
        comb = self._whole.comb
        if comb is not None and len(runs.pages) <= FEW_RUNS:
            return _moved(comb.part(begin, end), runs) if begin < end else NOTHING
        pairs = self._some(begin, end)
        if pairs.comb is not None and len(runs.pages) <= FEW_RUNS:
            return _moved(pairs.comb, runs)
        first, then, pages = (_column(numbers)[:, np.newaxis] for numbers in runs)  # [runs, 1]
        source = pairs.source + first * pairs.page_bytes  # [runs, pairs]
        target = pairs.target + then * pairs.page_bytes
        lengths = np.empty_like(source)
        lengths[...] = pages * pairs.page_bytes
        return CopyTable(source.ravel(), target.ravel(), lengths.ravel())

    def span(self, layers: range) -> tuple[int, int]:
        """Return where the pairs of some layers begin and end."""
        starts, (begin, end) = self._starts, (layers.start, layers.stop)
        if end >= len(starts):  # nobody has those behind the last one
            begin, end = min(begin, len(starts) - 1), len(starts) - 1
        return starts[begin], starts[end]

    def _some(self, begin: int, end: int) -> _Pairs:
        if not begin and end == len(self.layers):
            return self._whole
        if (known := self._apart.get((begin, end))) is None:
            columns = (c[begin:end] for c in (self.source, self.target, self.page_bytes))
            known = self._apart[begin, end] = _paired(*columns)
        return known


def _paired(source: Integers, target: Integers, page_bytes: Integers) -> _Pairs:
    lengths = np.broadcast_to(page_bytes, source.shape)
    found = combs(CopyTable(source, target, lengths))
    if len(set(page_bytes.tolist())) == 1:
        page_bytes = page_bytes[:1]
    return _Pairs(source, target, page_bytes, found[0] if len(found) == 1 else None)


def pairing(
    sources: Sequence[KvRegion],
    targets: Sequence[KvRegion],
    *,
    source_pool_pages: int,
    target_pool_pages: int,
) -> Pairing:
    """Pair the regions of two processes; those without a partner are let be.

    Args:
        sources: regions of this rank.
        targets: regions that the peer registered.
        source_pool_pages: pages in each region here.
        target_pool_pages: pages in each region of the peer.

    Raises:
        BadCopy: page sizes differ, or a region is named twice or ends past the end of memory.
    """
    pairs = _pairs(sources, targets, source_pool_pages, target_pool_pages)
    rows = [(s.layer, s.address, t.address, s.page_bytes) for s, t in pairs]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    layers, source, target, page_bytes = table.T.copy()
    whole = _paired(source, target, page_bytes)
    ends = np.searchsorted(layers, np.arange(int(layers[-1]) + 2 if len(layers) else 1))
    pools = source_pool_pages, target_pool_pages
    return Pairing(layers, source, target, page_bytes, *pools, whole, ends.tolist())


def copies(
    sources: Sequence[KvRegion],
    targets: Sequence[KvRegion],
    source_pages: Sequence[int],
    target_pages: Sequence[int],
    *,
    source_pool_pages: int,
    target_pool_pages: int,
) -> list[Copy]:
    """Return the copies of one write; see ``Pairing``, which spares what is the same each time."""
    paired = pairing(
        sources, targets, source_pool_pages=source_pool_pages, target_pool_pages=target_pool_pages
    )
    return list(paired.copies(paired.runs(source_pages, target_pages)))


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


def _few_runs(source: Sequence[int], target: Sequence[int]) -> Runs | None:
    """Return the runs of a few pages, without numpy; None when they need to be sorted."""
    firsts, thens, ends = [], [], []
    here = there = -1
    for index, (page, to) in enumerate(zip(source, target, strict=True)):
        if to <= there:
            return None
        if page != here + 1 or to != there + 1 or not index:
            firsts.append(page)
            thens.append(to)
            ends.append(index)
        here, there = page, to
    ends.append(len(source))
    return Runs(firsts, thens, [end - begin for begin, end in itertools.pairwise(ends)])


def _is_run(pages: Sequence[int]) -> bool:
    """Say whether pages are neighbours that ascend, where they come as a tuple."""
    count = len(pages)
    if not count or pages[-1] - pages[0] != count - 1:
        return False
    return pages == tuple(range(pages[0], pages[0] + count))


def _column(numbers: Integers | list[int]) -> Integers:
    return np.asarray(numbers, dtype=np.int64)


def _moved(comb: Comb, runs: Runs) -> CopyTable:
    """Return the combs of runs, from that of the regions' first pages."""
    source, target, page_bytes, teeth, of, to = comb
    return CopyTable.of(
        [
            Comb(
                source + int(first) * page_bytes,
                target + int(then) * page_bytes,
                int(pages) * page_bytes,
                teeth,
                of,
                to,
            )
            for first, then, pages in zip(*runs, strict=True)
        ]
    )


def _pages(pages: Sequence[int], pool_pages: int, side: str) -> Integers:
    column = np.asarray(pages, dtype=np.int64)
    # as unsigned numbers the negative ones are the largest
    if len(column) and column.view(np.uint64).max() >= pool_pages:
        outside = column[(column < 0) | (column >= pool_pages)]
        raise BadCopy(f"{side} page {outside[0]} is outside a pool of {pool_pages} pages")
    return column


def _runs(source: Integers, target: Integers) -> Runs:
    count = len(source)
    if count != len(target):
        raise BadCopy(f"{count} source pages for {len(target)} target pages")
    if count < 2:
        return Runs(source, target, np.ones(count, dtype=np.int64))
    steps = target[1:] - target[:-1]
    if not (steps > 0).all():
        order = np.argsort(target, kind="stable")
        source, target = source[order], target[order]
        steps = target[1:] - target[:-1]
        if (steps == 0).any():
            raise BadCopy(f"target page {target[1:][steps == 0][0]} is named twice")
    breaks = np.flatnonzero((steps != 1) | (source[1:] - source[:-1] != 1))
    edges = np.empty(len(breaks) + 2, dtype=np.int64)  # where runs begin, and the end
    edges[0], edges[1:-1], edges[-1] = 0, breaks + 1, count
    return Runs(source[edges[:-1]], target[edges[:-1]], edges[1:] - edges[:-1])
