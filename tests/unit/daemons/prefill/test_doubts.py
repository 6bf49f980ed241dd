"""A decode that cannot be written to is left alone for a while, and tried again."""

from __future__ import annotations

from daemons.prefill.doubts import AFTER, FOR_S, Doubts
from tests.support.cores import D_OTHER, D


def doubted(breaks: int = AFTER) -> Doubts:
    doubts = Doubts()
    for n in range(breaks):
        doubts.broke(D, "cut: reset", float(n))
    return doubts


def test_a_break_or_two_change_nothing_for_the_next_room() -> None:
    assert doubted(AFTER - 1).refusal(D, 3.0) == ""


def test_several_breaks_in_a_row_have_rooms_refused_with_the_reason() -> None:
    why = doubted().refusal(D, 3.0)
    assert why == "3 writes in a row broke (cut: reset); next try in 4.0 s"
    assert doubted().refusal(D_OTHER, 3.0) == ""


def test_after_a_while_one_room_tries_and_the_others_wait_for_what_it_finds() -> None:
    doubts = doubted()
    later = 2.0 + FOR_S
    assert doubts.refusal(D, later) == ""
    assert doubts.refusal(D, later) != ""
    assert doubts.refusal(D, later + FOR_S) == ""  # the try may have ended without a write


def test_a_write_that_succeeds_ends_the_doubt() -> None:
    doubts = doubted()
    doubts.worked(D)
    assert doubts.refusal(D, 3.0) == ""
    doubts.broke(D, "cut", 3.0)
    assert doubts.refusal(D, 3.0) == ""
    assert len(doubts.known) == 1


def test_a_try_that_breaks_begins_the_time_anew() -> None:
    doubts = doubted()
    later = 2.0 + FOR_S
    assert doubts.refusal(D, later) == ""
    doubts.broke(D, "cut", later + 1)
    assert doubts.refusal(D, later + FOR_S) != ""
    assert doubts.refusal(D, later + 1 + FOR_S) == ""
