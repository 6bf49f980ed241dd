"""Bytes that are under way together."""

from __future__ import annotations

import pytest

from daemons.prefill.in_flight import SMALL_BYTES, InFlight


def test_what_is_under_way_leaves_the_rest_of_the_total_to_others() -> None:
    total = InFlight(10 * SMALL_BYTES)
    with total.held(7 * SMALL_BYTES) as first:
        assert first == 7 * SMALL_BYTES
        with total.held(99 * SMALL_BYTES) as second:
            assert second == 3 * SMALL_BYTES
            assert total.bytes == 10 * SMALL_BYTES
        with total.held(5) as third:
            assert third == 5
    assert total.bytes == 0


def test_a_lane_gets_a_small_piece_whatever_others_hold() -> None:
    total = InFlight(2 * SMALL_BYTES)
    with total.held(2 * SMALL_BYTES), total.held(99 * SMALL_BYTES) as piece:
        assert piece == SMALL_BYTES


def test_what_a_broken_write_held_is_free_again() -> None:
    total = InFlight(2 * SMALL_BYTES)
    with pytest.raises(RuntimeError), total.held(2 * SMALL_BYTES):
        raise RuntimeError("what?")
    assert total.bytes == 0
