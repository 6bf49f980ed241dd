"""What decodes said, and what was sent to them since."""

from __future__ import annotations

from daemons.lb.credits import FRESH_S, Credits

D0, D1, D0_NEXT = ("d0", 1), ("d1", 1), ("d0", 2)


def heard() -> Credits:
    credits = Credits()
    credits.hear(D0, 100, 10.0)
    return credits


def test_a_decode_lacks_what_it_did_not_offer() -> None:
    assert heard().lacks(D0, 101, 11.0)
    assert not heard().lacks(D0, 100, 11.0)


def test_of_a_decode_that_said_nothing_or_long_ago_nothing_is_known() -> None:
    assert not heard().lacks(D1, 10**6, 11.0)
    assert not heard().lacks(D0_NEXT, 10**6, 11.0)
    assert not heard().lacks(D0, 10**6, 10.0 + FRESH_S)


def test_what_was_sent_counts_until_the_next_word() -> None:
    credits = heard()
    credits.spend(D0, 60)
    credits.spend(D1, 60)
    assert credits.lacks(D0, 41, 11.0)
    credits.hear(D0, 41, 11.0)
    assert not credits.lacks(D0, 41, 11.0)


def test_lives_that_are_over_are_forgotten() -> None:
    credits = heard()
    credits.keep({D1})
    assert credits.heard == {}


def test_what_is_free_is_known_for_a_while() -> None:
    credits = Credits()
    credits.hear(("d0", 1), 100, 10.0)
    credits.spend(("d0", 1), 30)
    assert credits.free(("d0", 1), 11.0) == 70
    assert credits.free(("d0", 1), 20.0) is None
    assert credits.free(("d1", 1), 11.0) is None
