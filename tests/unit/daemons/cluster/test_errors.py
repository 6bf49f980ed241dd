"""The operator's errors."""

from __future__ import annotations

from daemons.cluster.errors import OperatorError


def test_an_error_says_what_is_wrong_and_what_to_do() -> None:
    error = OperatorError("no daemon p9", "it has: p0")
    assert str(error) == "no daemon p9"
    assert (error.what, error.hint) == ("no daemon p9", "it has: p0")


def test_a_hint_may_be_absent() -> None:
    assert OperatorError("the port is taken").hint == ""
