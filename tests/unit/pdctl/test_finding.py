"""Findings."""

from __future__ import annotations

import pytest

from pdctl.finding import Check, Status, bad_first, one, worst

OK, WARN, FAIL = (Check(status.value, status, "") for status in Status)


@pytest.mark.parametrize(
    ("found", "status"),
    [([], Status.OK), ([OK, WARN], Status.WARN), ([WARN, FAIL, OK], Status.FAIL)],
)
def test_the_worst_decides(found: list[Check], status: Status) -> None:
    assert worst(found) is status


def test_what_is_bad_comes_first() -> None:
    assert list(bad_first([OK, WARN, FAIL])) == [FAIL, WARN, OK]


def test_an_examination_is_made_only_when_it_is_asked_for() -> None:
    made = []

    def make() -> Check:
        made.append(1)
        return OK

    examination = one("ok", make)
    assert (examination.names, made) == (("ok",), [])
    assert (list(examination.make()), made) == ([OK], [1])
