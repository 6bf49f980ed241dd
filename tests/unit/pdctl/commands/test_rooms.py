"""The list of rooms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.story import RoomRow
from pdctl.errors import Exit
from tests.support.fake_fleet import Fleet, Said

Pdctl = Callable[..., Said]
GOOD, BAD, OPEN = 0x11111111000001, 0x12222222000002, 0x13333333000003
FAILURE = Failure(Cause.PEER_DIED, "transfer", "p0")


def row(room: int, stage: str, failure: Failure | None = None) -> Any:
    return msgspec.to_builtins(RoomRow(room, 1, stage, room % 16 + 0.5, "", 9, 4, failure))


@pytest.fixture
def busy(fleet: Fleet) -> Fleet:
    fleet.p0.routes["/rooms"] = 200, {"rooms": [row(GOOD, "done"), row(OPEN, "done")]}
    rows = [row(GOOD, "done"), row(BAD, "failed", FAILURE), row(OPEN, "running")]
    fleet.d0.routes["/rooms"] = 200, {"rooms": rows}
    fleet.lb.routes["/rooms"] = 200, {"rooms": []}
    return fleet


def names(said: Said) -> list[int]:
    assert said.code == Exit.OK
    return [int(line, 16) for line in said.out.split()]


def test_open_rooms_come_first(busy: Fleet, pdctl: Pdctl) -> None:
    assert names(pdctl("rooms", "-c", busy.config, "-o", "name")) == [OPEN, GOOD, BAD]


def test_a_row_shows_every_legs_stage_and_the_failure(busy: Fleet, pdctl: Pdctl) -> None:
    lines = pdctl("rooms", "-c", busy.config).out.splitlines()
    assert lines[1].split()[:6] == ["13333333", "1", "open", "p0:done", "d0:running", "3.5s"]
    assert lines[3].endswith("peer.died in transfer (p0)")


def test_filters_narrow_the_list(busy: Fleet, pdctl: Pdctl) -> None:
    base = ("rooms", "-c", busy.config, "-o", "name")
    assert names(pdctl(*base, "--failed")) == [BAD]
    assert names(pdctl(*base, "--stage", "running")) == [OPEN]
    assert names(pdctl(*base, "-n", "1")) == [OPEN]
    assert names(pdctl(*base, "--failed", "--stage", "running")) == []


def test_an_empty_list_says_that_it_is_empty(fleet: Fleet, pdctl: Pdctl) -> None:
    for daemon in (fleet.p0, fleet.d0, fleet.lb):
        daemon.routes["/rooms"] = 200, {"rooms": []}
    assert pdctl("rooms", "-c", fleet.config).err == "no rooms yet\n"
    assert pdctl("rooms", "-c", fleet.config, "--failed").err == (
        "no room of that kind is remembered\n"
    )


def test_json_keeps_its_contract(
    busy: Fleet, pdctl: Pdctl, keeps_contract: Callable[..., Any]
) -> None:
    document = keeps_contract("rooms", pdctl("rooms", "-c", busy.config, "-o", "json").out)
    assert [room["state"] for room in document["rooms"]] == ["open", "done", "failed"]
    assert document["rooms"][2]["failure"]["cause"] == "peer.died"


def test_a_daemon_that_does_not_answer_is_named_and_the_others_told(
    busy: Fleet, pdctl: Pdctl
) -> None:
    busy.p0.stop()
    said = pdctl("rooms", "-c", busy.config, "-o", "name")
    assert names(said) == [OPEN, GOOD, BAD]
    assert said.err.startswith("without the rooms of p0: ")


def test_when_nobody_answers_it_is_exit_5(busy: Fleet, pdctl: Pdctl) -> None:
    for daemon in (busy.bootstrap, busy.lb):
        daemon.stop()
    assert pdctl("rooms", "-c", busy.config).code == Exit.UNREACHABLE
