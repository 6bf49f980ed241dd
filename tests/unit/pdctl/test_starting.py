"""Words and verdict while daemons start."""

from __future__ import annotations

import pytest

from daemons.cluster.load import load
from pdctl.errors import CommandError, Exit
from pdctl.starting import Progress
from tests.support.fake_fleet import Fleet

NAMES = ("bootstrap", "p0", "d0", "lb")


def test_all_that_serve_are_named_once(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(load(fleet.config), NAMES, 60.0, lambda name: None)
    assert not progress.is_ready
    progress.look()
    progress.look()
    assert progress.is_ready
    assert capsys.readouterr().err.count(" is up after ") == len(NAMES)


def test_the_first_that_is_late_is_told_with_its_log(fleet: Fleet) -> None:
    fleet.d0.routes["/health"] = 503, {"error": {"message": "loading"}}
    shown: list[str] = []
    progress = Progress(load(fleet.config), NAMES, 0.0, shown.append)
    with pytest.raises(CommandError, match="d0 does not serve after 0 s: loading") as caught:
        progress.look()
    assert (shown, caught.value.code) == (["d0"], Exit.TIMEOUT)


def test_those_left_out_are_waited_for_no_longer(fleet: Fleet) -> None:
    fleet.d0.routes["/health"] = 503, {"error": {"message": "loading"}}
    progress = Progress(load(fleet.config), NAMES, 60.0, lambda name: None)
    progress.look()
    assert not progress.is_ready
    progress.leave_out(["d0"])
    assert progress.is_ready
