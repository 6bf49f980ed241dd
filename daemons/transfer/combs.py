"""Copies within memory that this process sees, as few array assignments as they allow.

A comb is one assignment, in numpy, without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from daemons.transfer.backend import Comb, CopyTable

_LOWEST = 4096  # no memory is mapped below
# The whole address space as a buffer: an array anywhere in it costs a microsecond.
_EVERYTHING: Any = (ctypes.c_ubyte * ((1 << 62) - _LOWEST)).from_address(_LOWEST)


def copy(comb: Comb) -> None:
    """Copy each piece; every address must be known to be memory of this process."""
    into = _view(comb.target, comb.target_step, comb)
    into[...] = _view(comb.source, comb.source_step, comb)


def combs(copies: CopyTable) -> list[Comb]:
    """Return copies as combs, in order, without looking for them further than one copy ahead."""
    if copies.combs is not None:
        return list(copies.combs)
    return [_comb(copies, begin, end) for begin, end in _spans(copies)]


def _spans(copies: CopyTable) -> list[tuple[int, int]]:
    count = len(copies)
    if count < 2:
        return [(0, count)] * count
    source_step = copies.source[1:] - copies.source[:-1]
    target_step = copies.target[1:] - copies.target[:-1]
    alike = copies.bytes[1:] == copies.bytes[:-1]  # a piece and the next
    same = source_step[1:] == source_step[:-1]  # a step and the next
    same &= target_step[1:] == target_step[:-1]
    same &= alike[1:]
    same &= alike[:-1]
    if alike[0] and same.all():
        return [(0, count)]
    found, begin = [], 0
    for last in [*(np.flatnonzero(~same) + 1).tolist(), count - 1]:
        if begin < last:  # the steps from ``begin`` to ``last`` are the same, or it is one
            end = last + 1 if alike[begin] else begin + 1
            found.append((begin, end))
            begin = end
    if begin < count:
        found.append((begin, count))
    return found


def _comb(copies: CopyTable, begin: int, end: int) -> Comb:
    source, target = int(copies.source[begin]), int(copies.target[begin])
    length, teeth = int(copies.bytes[begin]), end - begin
    if teeth == 1:
        return Comb(source, target, length, 1)
    steps = int(copies.source[begin + 1]) - source, int(copies.target[begin + 1]) - target
    return Comb(source, target, length, teeth, *steps)


def _view(first: int, step: int, comb: Comb) -> npt.NDArray[np.uint8]:
    """Return the pieces of one side, ``[teeth, length]``."""
    shape = comb.teeth, comb.length
    return np.ndarray(shape, np.uint8, _EVERYTHING, first - _LOWEST, (step, 1))
