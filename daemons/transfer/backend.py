"""The seam of a transfer backend: four verbs, no rooms, no pages, no ranks.

A backend moves bytes one way, from memory registered here into memory that the peer registered.
Its promise is what the fences stand on: *when ``write`` has returned or raised, nothing of that
call leaves this process any more*, and no source byte of it is read any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


class Region(NamedTuple):
    """Memory of this process: where it starts and how long it is."""

    address: int
    bytes: int


class Copy(NamedTuple):
    """One piece of a write: from our address to the peer's address."""

    source: int
    target: int
    bytes: int


class Comb(NamedTuple):
    """``teeth`` pieces of ``length`` bytes, equal steps apart on both sides.

    A run of pages in every layer, kind and head is one.
    """

    source: int  # where the first one is
    target: int
    length: int
    teeth: int
    source_step: int = 0  # to the next one
    target_step: int = 0

    @property
    def bytes(self) -> int:
        """Of all pieces."""
        return self.teeth * self.length

    def parts(self, most_bytes: int) -> Iterator[Comb]:
        """Yield the same in combs of at most so many bytes, or of one piece."""
        each = max(1, most_bytes // self.length)
        for begin in range(0, self.teeth, each):
            yield self.part(begin, min(begin + each, self.teeth))

    def part(self, begin: int, end: int) -> Comb:
        """Return some of the pieces."""
        if not begin and end == self.teeth:
            return self
        source, target, length, _, of, to = self
        return Comb(source + begin * of, target + begin * to, length, end - begin, of, to)


class CopyTable:
    """Many copies as columns, or as few combs, so that a plan of thousands costs no objects.

    Reads like a sequence of ``Copy`` where that is enough. Columns of combs are made when somebody
    asks for them.

    Attributes:
        combs: the same as combs; None where nobody has looked for any.
    """

    __slots__ = ("_columns", "combs")

    def __init__(self, source: Integers, target: Integers, bytes: Integers) -> None:
        """Take columns of one length: our addresses, the peer's, lengths."""
        self._columns: tuple[Integers, Integers, Integers] | None = (source, target, bytes)
        self.combs: tuple[Comb, ...] | None = None

    @classmethod
    def of(cls, combs: Iterable[Comb]) -> CopyTable:
        """Return the copies of some combs, in order."""
        made = cls.__new__(cls)
        made._columns, made.combs = None, tuple(combs)
        return made

    @property
    def source(self) -> Integers:
        """Our addresses, shape ``[copies]``."""
        return self._laid_out()[0]

    @property
    def target(self) -> Integers:
        """The peer's addresses, shape ``[copies]``."""
        return self._laid_out()[1]

    @property
    def bytes(self) -> Integers:
        """Lengths, shape ``[copies]``."""
        return self._laid_out()[2]

    def __len__(self) -> int:
        """How many copies."""
        if self.combs is not None:
            return sum([comb.teeth for comb in self.combs])
        return len(self.bytes)

    def __iter__(self) -> Iterator[Copy]:
        """Give them one by one."""
        rows = (self.source.tolist(), self.target.tolist(), self.bytes.tolist())
        return map(Copy, *rows)

    def __getitem__(self, rows: slice) -> CopyTable:
        """Return some of them."""
        return CopyTable(self.source[rows], self.target[rows], self.bytes[rows])

    @property
    def total_bytes(self) -> int:
        """Bytes of all of them."""
        if self.combs is not None:
            return sum([comb.teeth * comb.length for comb in self.combs])
        return int(self.bytes.sum())

    def _laid_out(self) -> tuple[Integers, Integers, Integers]:
        if self._columns is None:
            self._columns = _laid_out(self.combs or ())
        return self._columns


def _laid_out(combs: Sequence[Comb]) -> tuple[Integers, Integers, Integers]:
    rows: Integers = np.array(combs, dtype=np.int64).reshape(-1, len(Comb._fields))
    source, target, length, teeth, source_step, target_step = rows.T  # [combs] each
    of = np.repeat(np.arange(len(rows)), teeth)  # which comb a copy is of, [copies]
    tooth: Integers = (
        np.arange(len(of), dtype=np.int64) - (np.cumsum(teeth) - teeth)[of]
    )  # and which of its pieces
    return (
        source[of] + tooth * source_step[of],
        target[of] + tooth * target_step[of],
        length[of],
    )


Copies = Sequence[Copy] | CopyTable


def table(copies: Copies) -> CopyTable:
    """Return copies as columns; addresses must be below 2^63, as ``check_sources`` sees to."""
    if isinstance(copies, CopyTable):
        return copies
    columns = np.array(copies, dtype=np.int64).reshape(-1, 3)  # [copies, 3]
    return CopyTable(columns[:, 0], columns[:, 1], columns[:, 2])


class PeerGone(Exception):
    """Nobody answers at the peer's session, and no byte of this write was sent."""


class WriteCut(Exception):
    """The write failed midway; our side of the connection is destroyed, so nothing more leaves.

    Bytes that were already in sockets may still land, for as long as the peer needs to read
    them: the receiver must not reuse the pages before it has settled. ``settled`` says that
    nothing is on its way anywhere: what has landed has landed, and no more will.
    """

    def __init__(self, why: str, *, settled: bool = False) -> None:
        super().__init__(why)
        self.settled = settled


class BadCopy(Exception):
    """A copy outside registered memory, or of no bytes: refused before anything was sent."""


class TransferBackend(Protocol):
    """Moves bytes one way into memory that the peer registered."""

    @property
    def session(self) -> str:
        """Name by which peers write to this process."""
        ...

    @property
    def transport(self) -> str:
        """What really carries the bytes, for people (``tcp``, ``rdma mlx5_0``, ``loopback``)."""
        ...

    def transport_to(self, peer: str) -> str:
        """What carries the bytes to one peer, and in brackets why nothing shorter does.

        "" before the first write to it, and when it is gone.
        """
        ...

    def register(self, regions: Sequence[Region]) -> None:
        """Let peers write into ``regions``, and let ``write`` read from them. Once, at start."""
        ...

    def write(self, peer: str, copies: Copies) -> None:
        """Write all ``copies`` and return when they are in the peer's memory.

        Blocks; called from lanes; at most one call per peer at a time.

        Raises:
            PeerGone: nothing was sent.
            WriteCut: part of it may land.
            BadCopy: refused here.
        """
        ...

    def close(self) -> None:
        """Forget all regions and connections. Nothing is written after this."""
        ...
