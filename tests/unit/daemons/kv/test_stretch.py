"""Where a part of a text lies."""

from __future__ import annotations

from daemons.kv.stretch import Stretch, joined

WHOLE = Stretch(2, (10, 11, 12), 1, (20, 21, 22, 23))


def test_it_reaches_from_the_first_to_the_last_of_which_anything_is_there() -> None:
    assert (WHOLE.begin, WHOLE.end) == (1, 5)
    assert (Stretch(9, (), 3, (7,)).begin, Stretch(9, (), 3, (7,)).end) == (3, 4)
    assert (Stretch(3, (7,)).begin, Stretch(3, (7,)).end) == (3, 4)
    assert (Stretch(3, ()).begin, Stretch(3, ()).end) == (3, 3)


def test_a_part_has_of_each_what_is_there() -> None:
    assert WHOLE.part(1, 3) == Stretch(2, (10,), 1, (20, 21))
    assert WHOLE.part(3, 9) == Stretch(3, (11, 12), 3, (22, 23))
    assert WHOLE.part(0, 1) == Stretch(2, (), 1, ())


def test_parts_that_follow_each_other_are_the_whole() -> None:
    parts = [WHOLE.part(at, at + 2) for at in range(0, 6, 2)]
    assert joined(parts) == WHOLE
    assert joined([WHOLE]) == WHOLE
