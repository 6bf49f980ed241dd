"""The seam of a transfer backend: four verbs, no rooms, no pages, no ranks.

A backend moves bytes one way, from memory registered here into memory that the peer registered.
Its promise is what the fences stand on: *when ``write`` has returned or raised, nothing of that
call leaves this process any more*, and no source byte of it is read any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Region(NamedTuple):
    """Memory of this process: where it starts and how long it is."""

    address: int
    bytes: int


class Copy(NamedTuple):
    """One piece of a write: from our address to the peer's address."""

    source: int
    target: int
    bytes: int


class PeerGone(Exception):
    """Nobody answers at the peer's session, and no byte of this write was sent."""


class WriteCut(Exception):
    """The write failed midway; our side of the connection is destroyed, so nothing more leaves.

    Bytes that were already in sockets may still land, for as long as the peer needs to read
    them: the receiver must not reuse the pages before it has settled.
    """


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

    def register(self, regions: Sequence[Region]) -> None:
        """Let peers write into ``regions``, and let ``write`` read from them. Once, at start."""
        ...

    def write(self, peer: str, copies: Sequence[Copy]) -> None:
        """Write all ``copies`` and return when the peer's engine has acknowledged them.

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
