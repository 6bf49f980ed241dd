"""Words and verdict while daemons start."""

from __future__ import annotations

import pytest

from daemons.cluster.load import load
from pdctl.errors import CommandError, Exit
from pdctl.starting import QUIET_S, Progress
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


def test_after_a_quiet_while_it_says_who_is_waited_for_and_why(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.p0.routes["/health"] = fleet.d0.routes["/health"] = (
        503,
        {"error": {"message": "loading"}},
    )
    now = 0.0
    progress = Progress(load(fleet.config), NAMES, 60.0, lambda name: None, clock=lambda: now)
    progress.look()
    assert "waiting" not in capsys.readouterr().err
    now = QUIET_S
    progress.look()
    assert capsys.readouterr().err == "  10 s: waiting for p0, d0 (loading)\n"
    now += QUIET_S / 2
    progress.look()
    assert capsys.readouterr().err == ""
