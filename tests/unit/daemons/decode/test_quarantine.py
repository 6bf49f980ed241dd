"""Memory is released on knowledge, never on time alone."""

from __future__ import annotations

import pytest

from daemons.decode.quarantine import ABORT_EVERY_S, Held, Quarantine
from daemons.protocol.handshake import Fence
from tests.support.cores import CANCELLED, P_NEXT, P, key


def quarantine(*rooms: int) -> Quarantine:
    ours = Quarantine(settle_s=2.0)
    for room in rooms:
        ours.rooms[key(room)] = Held(P, (room,), 0, CANCELLED, 0.0)
    ours.settled(0.0)
    return ours


def settled(ours: Quarantine, begin_s: float, end_s: float) -> list[object]:
    """Look every 0.25 s from ``begin_s`` to ``end_s``."""
    out: list[object] = []
    for look in range(int((end_s - begin_s) * 4) + 1):
        out += [room for room, _ in ours.settled(begin_s + look / 4)]
    return out


def test_no_answer_is_no_release_however_long_it_takes() -> None:
    assert settled(quarantine(1), 0.0, 1000.0) == []


def test_a_clean_answer_releases_at_once() -> None:
    ours = quarantine(1, 2)
    ours.answered(key(1), P, Fence.CLEAN, 1.0)
    assert settled(ours, 1.0, 1.0) == [key(1)]
    assert list(ours.rooms) == [key(2)]


def test_a_cut_writers_bytes_get_time_to_land() -> None:
    ours = quarantine(1)
    ours.answered(key(1), P, Fence.CUT, 0.25)
    assert settled(ours, 0.25, 2.0) == []
    assert settled(ours, 2.25, 2.25) == [key(1)]


def test_a_dead_writers_bytes_get_time_to_land() -> None:
    ours = quarantine(1)
    ours.died(P_NEXT, 0.0)
    ours.died(P, 0.25)
    assert settled(ours, 0.25, 2.0) == []
    assert settled(ours, 2.25, 2.25) == [key(1)]


def test_only_the_writer_answers() -> None:
    ours = quarantine(1)
    ours.answered(key(1), P_NEXT, Fence.CLEAN, 1.0)
    ours.answered(key(2), P, Fence.CLEAN, 1.0)
    assert settled(ours, 1.0, 5.0) == []


def test_a_later_answer_neither_shortens_nor_lengthens_the_time() -> None:
    ours = quarantine(1)
    ours.answered(key(1), P, Fence.CUT, 0.0)
    ours.answered(key(1), P, Fence.CLEAN, 0.5)
    ours.died(P, 1.0)
    assert settled(ours, 0.25, 1.75) == []
    assert settled(ours, 2.0, 2.0) == [key(1)]


@pytest.mark.parametrize("frozen_s", [3.0, 1000.0])
def test_time_in_which_nobody_looked_counts_for_little(frozen_s: float) -> None:
    ours = quarantine(1)
    ours.answered(key(1), P, Fence.CUT, 0.0)
    assert settled(ours, 0.0, 0.5) == []
    thawed_s = 0.5 + frozen_s
    assert settled(ours, thawed_s, thawed_s + 1.0) == []
    assert settled(ours, thawed_s + 1.25, thawed_s + 1.25) == [key(1)]


def test_aborts_are_repeated_until_there_is_an_answer() -> None:
    ours = quarantine(1, 2)
    ours.answered(key(2), P, Fence.CUT, 0.0)
    assert ours.unanswered(ABORT_EVERY_S - 0.1) == []
    assert [room for room, _ in ours.unanswered(ABORT_EVERY_S)] == [key(1)]
    assert ours.unanswered(ABORT_EVERY_S + 0.1) == []
    assert [room for room, _ in ours.unanswered(2 * ABORT_EVERY_S)] == [key(1)]
