"""Which chunks of a room are summed, and their sums until the row takes them along.

Used by the lanes, one of which has all writes of a room. Pages are summed after they have been
sent: they are computed and pinned by then, and the peer has them the sooner.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from daemons.kv.stretch import Stretch, joined
from daemons.protocol.handshake import KvRegion
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import SUMS_LIMIT, ChunkSum
from daemons.transfer.sums import PageSums

SAMPLED_ONE_IN = 16  # chunks
ROOMS_LIMIT = 16384  # whose sums are kept; those that ended badly before their row go first

Mode = Literal["off", "sampled", "all"]


@dataclass(slots=True)
class Kept:
    """Of one room."""

    sums: list[ChunkSum] = field(default_factory=list)
    rest: list[Stretch] = field(default_factory=list)  # those that found no place
    tokens: int = 0  # of the prompt


class ChunkSums:
    """Sums of the rooms that are under way."""

    def __init__(self, pages: PageSums, mode: Mode) -> None:
        self._pages = pages
        self._mode: Mode = mode if pages.can_be_had else "off"
        self._rooms: OrderedDict[RoomKey, Kept] = OrderedDict()
        self._alike: set[PeerId] = set()  # peers whose regions are the same as ours

    def learn(self, peer: PeerId, regions: Sequence[KvRegion]) -> None:
        """A decode has registered: where it has other heads than we, it cannot compare."""
        if frozenset((r.layer, r.kind, r.head) for r in regions) == self._pages.places:
            self._alike.add(peer)

    def forget(self, peer: PeerId) -> None:
        """A decode is gone."""
        self._alike.discard(peer)

    def sent(self, peer: PeerId, key: RoomKey, chunk: Stretch, tokens: int = 0) -> None:
        """Sum a chunk of a prompt of ``tokens``, if it is one of those.

        What of a layer no token behind the prompt sees has not been sent.
        """
        nothing = not chunk.pages and not chunk.window
        if nothing or peer not in self._alike or not self._is_chosen(key, chunk.begin):
            return
        kept = self._rooms.setdefault(key, Kept())
        while len(self._rooms) > ROOMS_LIMIT:
            self._rooms.popitem(last=False)
        if len(kept.sums) < SUMS_LIMIT - 1:
            kept.sums.append(self._sum(chunk, tokens))
        elif self._mode == "all":
            kept.tokens = tokens
            kept.rest.append(chunk)  # without gaps, since every chunk is chosen

    def take(self, key: RoomKey) -> list[ChunkSum]:
        """Return the sums of a room and forget them."""
        kept = self._rooms.pop(key, Kept())
        if kept.rest:
            kept.sums.append(self._sum(joined(kept.rest), kept.tokens))
        return kept.sums

    def _sum(self, chunk: Stretch, tokens: int) -> ChunkSum:
        return ChunkSum(chunk.begin, chunk.end - chunk.begin, self._pages.of(chunk, tokens))

    def _is_chosen(self, key: RoomKey, first: int) -> bool:
        if self._mode != "sampled":
            return self._mode == "all"
        lot = zlib.crc32(f"{key.room}.{key.attempt}.{first}".encode())
        return lot % SAMPLED_ONE_IN == 0
