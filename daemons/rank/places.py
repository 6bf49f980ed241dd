"""Whose pages a copy reads: from an address back to the page, and to who the core says has it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from daemons.kv.ledger import Ledger
from daemons.kv.window_pool import WindowPool
from daemons.protocol.handshake import KvRegion
from daemons.protocol.ids import RoomKey


@dataclass(frozen=True, slots=True)
class Places:
    """The regions of a pool, by address, and the ledgers of their pages."""

    regions: Sequence[KvRegion]
    pool: WindowPool
    pages: Ledger
    window: Ledger

    def rooms(self, addresses: Iterable[int]) -> list[RoomKey]:
        """Return who has the pages there; of those that several read the newest, after holders."""
        places = {self._place(address) for address in addresses}
        holders = [ledger.owner(page)[1] for ledger, page in places]
        readers = [key for ledger, page in places for key in ledger.readers(page)[-1:]]
        return [key for key in (*holders, *readers) if key]

    def _place(self, address: int) -> tuple[Ledger, int]:
        at = bisect_right(self.regions, address, key=lambda region: region.address) - 1
        region = self.regions[at]
        ledger = self.window if self.pool.has(region.layer) else self.pages
        return ledger, (address - region.address) // region.page_bytes


def places_of(
    regions: Iterable[KvRegion], pool: WindowPool, pages: Ledger, window: Ledger
) -> Places:
    """Return the places of an engine's ``regions``."""
    ordered = sorted(regions, key=lambda region: region.address)
    return Places(ordered, pool, pages, window)
