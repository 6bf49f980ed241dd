"""The seam of a transfer backend: four verbs, no rooms, no pages, no ranks.

A backend moves bytes one way, from memory registered here into memory that the peer registered.
Its promise is what the fences stand on: *when ``write`` has returned or raised, nothing of that
call leaves this process any more*, and no source byte of it is read any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class CopyTable:
    """Many copies as columns, so that a plan of thousands costs no objects.

    Reads like a sequence of ``Copy`` where that is enough.

    Attributes:
        source: our addresses, shape ``[copies]``.
        target: the peer's addresses, same shape.
        bytes: lengths, same shape.
    """

    source: Integers
    target: Integers
    bytes: Integers

    def __len__(self) -> int:
        """How many copies."""
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
        return int(self.bytes.sum())


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
        """What carries the bytes to one peer; "" before the first write to it."""
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
