"""Waiting for a cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pdctl.commands.await_ import counts
from pdctl.errors import CommandError, Exit
from tests.support.fake_fleet import Fleet, Said

Pdctl = Callable[..., Said]


def test_counts_are_read_by_role() -> None:
    assert counts("P=2,D=3") == {"prefill": 2, "decode": 3}
    assert counts(" prefill=1 , lb=1") == {"prefill": 1, "lb": 1}


@pytest.mark.parametrize("words", ["", "P", "P=", "P=x", "Q=1", "P=1,prefill=2", "P=-1"])
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(CommandError) as caught:
        counts(words)
    assert caught.value.code is Exit.USAGE


def test_who_is_ready_already_is_not_waited_for(fleet: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("await", "--ready", "P=1,D=1", "-c", fleet.config)
    assert (said.code, "prefill 1/1, decode 1/1" in said.err) == (Exit.OK, True)


def test_who_does_not_come_is_told_at_the_deadline(fleet: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("await", "--ready", "P=2", "--timeout", "0.1", "-c", fleet.config)
    assert (said.code, "prefill 1/2" in said.err) == (Exit.TIMEOUT, True)


def test_a_silent_phone_book_is_waited_for_too(fleet: Fleet, pdctl: Pdctl) -> None:
    fleet.bootstrap.stop()
    said = pdctl("await", "--ready", "P=1", "--timeout", "0.1", "-c", fleet.config)
    assert said.code == Exit.TIMEOUT
