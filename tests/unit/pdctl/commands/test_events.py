"""What happened lately."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.story import RoomRow
from pdctl.commands import events as command
from pdctl.errors import Exit
from tests.support.fake_fleet import Fleet, Said

Pdctl = Callable[..., Said]


@pytest.fixture
def eventful(fleet: Fleet) -> Fleet:
    now_s = time.time()
    rows = [
        {"at_s": now_s - 60, "event": "new", "instance": "p0", "role": "prefill", "epoch": 7},
        {"at_s": now_s - 9, "event": "lost", "instance": "p0"},
    ]
    fleet.bootstrap.routes["/events"] = 200, {"now_s": now_s, "events": rows}
    failed = RoomRow(7, 1, "failed", 5.0, "p0", 9, 0, Failure(Cause.PEER_DIED, "transfer", "p0"))
    told = {"rooms": msgspec.to_builtins([failed]), "now_s": now_s}
    fleet.d0.routes["/rooms"] = 200, told
    fleet.p0.routes["/rooms"] = fleet.lb.routes["/rooms"] = 200, {"rooms": []}
    return fleet


def test_the_oldest_comes_first(eventful: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("events", "-c", eventful.config)
    assert (said.code, said.err) == (Exit.OK, "")
    assert [line.split()[1] for line in said.out.splitlines()] == ["KIND", "new", "lost", "failed"]
    assert "peer.died in transfer (p0)" in said.out


def test_one_kind_may_be_asked_for(eventful: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("events", "-c", eventful.config, "--kind", "failed", "-o", "name")
    assert said.out.split() == ["00000000000007"]


def test_json_keeps_its_contract(
    eventful: Fleet, pdctl: Pdctl, keeps_contract: Callable[..., Any]
) -> None:
    document = keeps_contract("events", pdctl("events", "-c", eventful.config, "-o", "json").out)
    assert [event["cause"] for event in document["events"]] == [None, None, "peer.died"]


def test_a_silent_phone_book_leaves_the_failed_rooms(eventful: Fleet, pdctl: Pdctl) -> None:
    eventful.bootstrap.routes["/events"] = 500, {"error": {"message": "broken"}}
    said = pdctl("events", "-c", eventful.config, "-o", "name")
    assert (said.code, said.out.split()) == (Exit.OK, ["00000000000007"])
    assert "without the events of bootstrap: broken" in said.err


def test_nobody_at_all_is_exit_5(eventful: Fleet, pdctl: Pdctl) -> None:
    for daemon in (eventful.bootstrap, eventful.p0, eventful.d0, eventful.lb):
        daemon.stop()
    assert pdctl("events", "-c", eventful.config).code == Exit.UNREACHABLE


def test_following_shows_only_what_is_new(
    eventful: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        _, said = eventful.bootstrap.routes["/events"]  # type: ignore[misc]
        row = {"at_s": time.time() + 1, "event": "draining", "instance": "d0"}
        said["events"].append(row)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", sleep)
    said = pdctl("events", "-c", eventful.config, "-f", "-o", "name")
    assert said.code == 130
    assert said.out.split() == ["p0", "p0", "00000000000007", "d0"]
