"""Copies put together and taken apart: as combs where they are combs, else as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from daemons.transfer.backend import Comb, CopyTable


def joined(tables: Sequence[CopyTable]) -> CopyTable:
    """Return all copies of some tables in one."""
    if len(tables) == 1:
        return tables[0]
    known = [table.combs for table in tables]
    if all(some is not None for some in known):
        return CopyTable.of(comb for some in known for comb in some or ())
    nothing = np.empty(0, dtype=np.int64)
    return CopyTable(
        np.concatenate([nothing, *(table.source for table in tables)]),
        np.concatenate([nothing, *(table.target for table in tables)]),
        np.concatenate([nothing, *(table.bytes for table in tables)]),
    )


def cut(copies: CopyTable, most_bytes: int) -> list[CopyTable]:
    """Return the copies in slices of at most so many bytes, longer copies taken apart.

    Every slice but the last holds more than half of ``most_bytes``, unless a copy alone would not.
    """
    total_bytes = copies.total_bytes
    if total_bytes <= most_bytes:
        return [copies] if total_bytes or len(copies) else []
    piece_bytes = max(1, most_bytes // 4)
    if copies.combs is not None:
        return [CopyTable.of(some) for some in _dealt(copies.combs, piece_bytes, most_bytes)]
    copies = _shortened(copies, piece_bytes)
    ends = np.cumsum(copies.bytes)
    slices, begin = [], 0
    while begin < len(copies):
        before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, before + most_bytes, side="right"))
        slices.append(copies[begin:end])
        begin = end
    return slices


def _dealt(combs: Sequence[Comb], piece_bytes: int, most_bytes: int) -> Iterator[list[Comb]]:
    """Yield the combs of each slice."""
    some: list[Comb] = []
    left_bytes = most_bytes
    for whole in combs:
        for comb in _short(whole, piece_bytes):
            begin = 0
            while begin < comb.teeth:
                fitting = min(left_bytes // comb.length, comb.teeth - begin)
                if not fitting:
                    yield some
                    some, left_bytes = [], most_bytes
                    continue
                part = comb.part(begin, begin + fitting)
                some.append(part)
                left_bytes -= part.bytes
                begin += fitting
    yield some


def _short(comb: Comb, most_bytes: int) -> Iterator[Comb]:
    """Yield the same, in order, in combs of pieces of at most so many bytes."""
    if comb.length <= most_bytes:
        yield comb
        return
    pieces, rest = divmod(comb.length, most_bytes)
    for tooth in range(comb.teeth):
        source = comb.source + tooth * comb.source_step
        target = comb.target + tooth * comb.target_step
        yield Comb(source, target, most_bytes, pieces, most_bytes, most_bytes)
        if rest:
            done = pieces * most_bytes
            yield Comb(source + done, target + done, rest, 1)


def _shortened(copies: CopyTable, most_bytes: int) -> CopyTable:
    """Return the same in pieces of at most so many bytes."""
    counts = -(-copies.bytes // most_bytes)
    if int(counts.max()) == 1:
        return copies
    firsts = np.cumsum(counts) - counts
    at = (np.arange(int(counts.sum())) - np.repeat(firsts, counts)) * most_bytes
    left = np.repeat(copies.bytes, counts) - at
    return CopyTable(
        np.repeat(copies.source, counts) + at,
        np.repeat(copies.target, counts) + at,
        np.minimum(left, most_bytes),
    )
