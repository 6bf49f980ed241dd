"""Bytes that are under way together."""

from __future__ import annotations

from daemons.prefill.in_flight import SMALL_BYTES, InFlight


def test_what_is_under_way_leaves_the_rest_of_the_total_to_others() -> None:
    total = InFlight(10 * SMALL_BYTES)
    assert total.most(99 * SMALL_BYTES) == 10 * SMALL_BYTES
    total.begin(7 * SMALL_BYTES)
    assert total.most(99 * SMALL_BYTES) == 3 * SMALL_BYTES
    assert total.most(5) == 5
    total.end(7 * SMALL_BYTES)
    assert total.bytes == 0


def test_a_lane_gets_a_small_piece_whatever_others_hold() -> None:
    total = InFlight(2 * SMALL_BYTES)
    total.begin(2 * SMALL_BYTES)
    assert total.most(99 * SMALL_BYTES) == SMALL_BYTES
