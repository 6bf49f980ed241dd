"""The copier's C interface in Python's words.

What a neighbour shows is laid out once (``Target``), a write is then one call: look, check, copy,
look again. Whatever is not as usual it leaves to who called, with nothing of it done or all of it
to be done again; writing the same bytes twice is writing them once.
"""

from __future__ import annotations

import ctypes as c
import struct
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np

from daemons.transfer.backend import Comb, CopyTable, Integers
from daemons.transfer.memory import Registered
from daemons.transfer.native.build import COPIER


class Moved(IntEnum):
    """How a write went."""

    DONE = 0
    UNLIKE = 1  # the peer is not as it was found; nothing was written
    STRAY = 2  # a piece outside of what is known or mapped; nothing was written
    CHANGED = 3  # the peer is no longer as it was found; part was written
    CLOSED = 4  # we are; part was written


class _Regions(c.Structure):
    _fields_ = (
        ("begins", c.c_void_p),
        ("ends", c.c_void_p),
        ("shifts", c.c_void_p),
        ("count", c.c_int64),
    )


class _Neighbour(c.Structure):
    _fields_ = (
        ("regions", _Regions),
        ("notice", c.c_void_p),
        ("page", c.c_char_p),
        ("page_bytes", c.c_int64),
        ("life", c.c_int32),
    )


class Laid:
    """Regions as the copier reads them."""

    def __init__(self, memory: Registered, shifts: Integers | None = None) -> None:
        """``shifts`` lead from an address to the same byte here, ``[regions]``; 0: they do not."""
        begins, ends = memory.columns
        led = np.zeros_like(begins)
        if shifts is not None:
            led[1:] = shifts
        self._kept = begins, ends, led
        self.struct = _Regions(*(column.ctypes.data for column in self._kept), len(begins))
        self.address = c.addressof(self.struct)


class Target:
    """A neighbour as the copier reads it; whoever has it keeps alive what it leads to."""

    def __init__(self, regions: Laid, notice: int, page: bytes, life: int) -> None:
        """Take what it shows, where its notice is mapped, the notice as found, and its pidfd."""
        self._regions = regions
        self.struct = _Neighbour(regions.struct, notice, page, len(page), life)
        self.address = c.addressof(self.struct)


class Mover:
    """A built copier."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            OSError: it cannot be loaded, or is of another version.
        """
        library = c.CDLL(str(path))
        try:
            move, size = library.pd_move, library.pd_neighbour_bytes()
        except AttributeError as error:
            raise OSError(f"{path}: {error}") from error
        if size != c.sizeof(_Neighbour):
            raise OSError(f"{path} is of another version")
        move.restype = c.c_int32
        move.argtypes = [c.c_void_p, c.c_int64, *[c.c_void_p] * 3, c.c_int64]
        self._move: Callable[..., int] = move

    def move(
        self, copies: CopyTable, ours: Laid, target: Target, closed: int, call_bytes: int
    ) -> int:
        """Write copies, and return one of ``Moved``.

        Args:
            copies: what; no byte of it lies in two of them.
            ours: memory that may be read.
            target: whom to.
            closed: where a ``c_int32`` is that ends a write at its next call when it is not 0.
            call_bytes: between two looks at the peer, a longer piece aside.
        """
        combs = copies.combs
        if combs is None:
            rows = _rows(copies)
            count, at = len(rows), rows.ctypes.data
            return self._move(at, count, ours.address, target.address, closed, call_bytes)
        count = len(combs)
        try:
            packed = _packer(count)(*chain.from_iterable(combs))
        except struct.error:  # a number that no address is
            return Moved.STRAY
        return self._move(packed, count, ours.address, target.address, closed, call_bytes)


@cache
def mover() -> Mover | None:
    """Return the copier of this machine; None where it was not built."""
    path = COPIER.found()
    try:
        return Mover(path) if path else None
    except OSError:  # of another version, for another system, or not to be run
        return None


@cache
def _packer(combs: int) -> Callable[..., bytes]:
    return struct.Struct(f"{combs * len(Comb._fields)}q").pack


def _rows(copies: CopyTable) -> Integers:
    """Return copies as combs of one piece; the copier makes longer ones of them where it can."""
    rows = np.zeros((len(copies), len(Comb._fields)), dtype=np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2] = copies.source, copies.target, copies.bytes
    rows[:, 3] = 1
    return rows
