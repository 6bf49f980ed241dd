"""Rooms that are over are remembered for a time."""

from __future__ import annotations

from daemons.protocol.ids import RoomKey
from daemons.runtime.tombstones import Tombstones

A, B, C = RoomKey(1, 1), RoomKey(2, 1), RoomKey(3, 1)


def test_what_was_put_is_remembered_until_its_time_is_over() -> None:
    stones = Tombstones[str](keep_s=10.0)
    stones.put(A, "done", 0.0)
    stones.expire(9.9)
    assert stones.get(A) == "done"
    stones.expire(10.0)
    assert stones.get(A) is None
    assert len(stones) == 0


def test_another_attempt_is_another_room() -> None:
    stones = Tombstones[str](keep_s=10.0)
    stones.put(A, "done", 0.0)
    assert stones.get(RoomKey(1, 2)) is None


def test_putting_again_begins_the_time_anew() -> None:
    stones = Tombstones[str](keep_s=10.0)
    stones.put(A, "first", 0.0)
    stones.put(B, "other", 1.0)
    stones.put(A, "second", 5.0)
    stones.expire(11.0)
    assert stones.get(A) == "second"
    assert stones.get(B) is None


def test_strangers_are_bounded_and_the_rest_is_refused() -> None:
    stones = Tombstones[str](keep_s=10.0, limit=2)
    assert stones.put_stranger(A, "a", 0.0)
    assert stones.put_stranger(B, "b", 0.0)
    assert not stones.put_stranger(C, "c", 0.0)
    assert stones.get(C) is None
    assert stones.put_stranger(A, "again", 0.0)


def test_our_own_rooms_always_find_a_place() -> None:
    stones = Tombstones[str](keep_s=10.0, limit=1)
    stones.put_stranger(A, "a", 0.0)
    stones.put(B, "ours", 0.0)
    stones.put(C, "ours", 0.0)
    assert len(stones) == 3


def test_a_place_is_free_again_when_a_stranger_is_forgotten_or_becomes_ours() -> None:
    stones = Tombstones[str](keep_s=10.0, limit=1)
    stones.put_stranger(A, "a", 0.0)
    stones.put(A, "ours", 1.0)
    assert stones.put_stranger(B, "b", 1.0)
    stones.expire(11.0)
    assert stones.put_stranger(C, "c", 11.0)
