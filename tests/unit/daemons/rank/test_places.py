"""From an address to the room whose page is there."""

from __future__ import annotations

from daemons.kv.ledger import Ledger, Owner
from daemons.kv.window import Windows
from daemons.kv.window_pool import WindowPool
from daemons.protocol.handshake import KvRegion
from daemons.protocol.ids import RoomKey
from daemons.rank.places import places_of

A, B, C = RoomKey(1, 1), RoomKey(2, 1), RoomKey(3, 1)
FULL, NARROW = KvRegion(1000, 10, 0, 0, 0), KvRegion(500, 20, 1, 0, 0)


def test_a_page_is_its_own_pools() -> None:
    pages, window = Ledger(8), Ledger(4)
    pages.take(A, 3, Owner.REQUEST)
    window.take(B, 2, Owner.WRITER)
    places = places_of((FULL, NARROW), WindowPool(Windows(4, (None, 5)), 4), pages, window)
    assert places.rooms([1025]) == [A]
    assert places.rooms([520]) == [B]
    assert places.rooms([1030, 540]) == []
    assert sorted(places.rooms([1000, 1010, 500])) == [A, A, B]


def test_of_a_cached_page_its_newest_reader_is_told() -> None:
    pages = Ledger(4)
    pages.move(A, pages.take(A, 1, Owner.REQUEST), Owner.REQUEST, Owner.CACHED)
    places = places_of((FULL,), WindowPool(), pages, Ledger(0))
    assert places.rooms([1000]) == []
    pages.read_by(B, 0)
    pages.read_by(C, 0)
    assert places.rooms([1000]) == [C]
