"""Sleeping between two questions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.transfer.naps import LONGEST_S, SHORTEST_S, Naps


def asked(total_bytes: int, rate: float) -> tuple[float, int]:
    """Return how late the last byte of a write is noticed, and after how many questions.

    Bytes move evenly, ``rate`` a second.
    """
    now_s, questions, seen_bytes = 0.0, 0, 0
    naps = Naps(now_s)
    while seen_bytes < total_bytes:
        arrived = min(total_bytes, int(now_s * rate))
        questions += 1
        if arrived > seen_bytes:
            naps.moved(arrived - seen_bytes)
            seen_bytes = arrived
        if seen_bytes < total_bytes:
            now_s += naps.next_s(now_s, total_bytes - seen_bytes)
    return now_s - total_bytes / rate, questions


@given(st.integers(1_000_000, 64 << 20), st.floats(1e8, 1e10))
def test_the_end_of_what_moves_evenly_is_noticed_at_once(total_bytes: int, rate: float) -> None:
    late_s, _ = asked(total_bytes, rate)
    assert 0 <= late_s <= SHORTEST_S + 1e-6


def test_few_questions_are_asked() -> None:
    assert asked(400_000, 1e8)[1] < 15  # of 4 ms, 80 of the shortest naps
    assert asked(10_000_000, 1e8)[1] < 130  # of 100 ms


def test_what_does_not_move_is_asked_after_ever_less_often() -> None:
    naps = Naps(0.0)
    found = [naps.next_s(0.1, 1000) for _ in range(8)]
    assert found[:3] == pytest.approx([SHORTEST_S, 2 * SHORTEST_S, 4 * SHORTEST_S])
    assert found[-1] == LONGEST_S
    naps.moved(1)
    naps.next_s(0.2, 1000)
    assert naps.next_s(0.2, 1000) == SHORTEST_S


def test_no_nap_is_shorter_or_longer_than_its_limits() -> None:
    for left_bytes, nap_s in ((1, SHORTEST_S), (1 << 40, LONGEST_S)):
        naps = Naps(0.0)
        naps.moved(1000)
        assert naps.next_s(0.001, left_bytes) == nap_s
