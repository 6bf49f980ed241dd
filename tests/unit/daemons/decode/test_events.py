"""What can happen to a decode rank: values."""

from __future__ import annotations

from daemons.decode.events import Event, RowRead
from daemons.protocol.generate import RouteFailed, RouteFound
from daemons.protocol.ids import RoomKey
from daemons.protocol.metadata import RowState


def test_events_are_values() -> None:
    empty = RowRead(RoomKey(1, 1), RowState.EMPTY, None)
    assert empty == RowRead(RoomKey(1, 1), RowState.EMPTY, None)


def test_the_union_has_decodes_own_events() -> None:
    assert {RowRead, RouteFound, RouteFailed} <= set(Event.__args__)
