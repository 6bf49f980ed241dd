"""Rooms that stand still, listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from daemons.protocol.story import Line, RoomRow, Story
from pdctl.commands import maybe_stuck as command
from pdctl.errors import Exit
from tests.support.fake_fleet import Fleet, Said

Pdctl = Callable[..., Said]
ROW = RoomRow(7, 1, "transfer", 42.0, "p0", 9, 0)
STORY = Story(7, 1, "d0", "decode", (Line(100.0, "", "transfer", "3 pages", peer="p0"),), True)


@pytest.fixture
def still(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(command.time, "sleep", lambda _: None)
    for daemon in (fleet.p0, fleet.d0, fleet.lb):
        daemon.routes["/rooms"] = 200, {"rooms": []}
    fleet.d0.routes["/rooms"] = 200, {"rooms": msgspec.to_builtins([ROW])}
    fleet.d0.routes[f"/rooms/{7:014x}"] = 200, {"stories": msgspec.to_builtins([STORY])}
    return fleet


def test_a_room_that_stands_still_is_exit_4_with_a_hint(
    still: Fleet, pdctl: Pdctl, keeps_contract: Callable[..., Any]
) -> None:
    said = pdctl("maybe-stuck", "-c", still.config, "-o", "json")
    assert said.code == Exit.DEGRADED
    (room,) = keeps_contract("maybe-stuck", said.out)["rooms"]
    assert (room["quiet_s"], room["stage"], room["last"]) == (42.0, "transfer", "3 pages")
    assert room["hint"] == "p0 writes nothing: pdctl logs p0"


def test_none_is_exit_0_and_says_so(still: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("maybe-stuck", "-c", still.config, "--after", "60")
    assert (said.code, said.err) == (Exit.OK, "no room has stood still for 60 s\n")


def test_nobody_at_all_is_exit_5(still: Fleet, pdctl: Pdctl) -> None:
    for daemon in (still.bootstrap, still.p0, still.d0, still.lb):
        daemon.stop()
    assert pdctl("maybe-stuck", "-c", still.config).code == Exit.UNREACHABLE
