"""One request, explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.story import RoomRow, Story
from pdctl.errors import Exit
from tests.support.fake_fleet import FakeDaemon, Fleet, Said
from tests.support.stories import DECODE, LB, PREFILL, ROOM, ended

Pdctl = Callable[..., Said]
HEX = f"{ROOM:014x}"
OTHER = ROOM ^ 1


def tell(daemon: FakeDaemon, *stories: Story) -> None:
    rows = [RoomRow(room, 1, "done", 1.0, "", 9, 4) for room in (ROOM, OTHER)]
    daemon.routes["/rooms"] = 200, {"rooms": msgspec.to_builtins(rows)}
    daemon.routes[f"/rooms/{HEX}"] = 200, {"stories": msgspec.to_builtins(list(stories))}


@pytest.fixture
def told(fleet: Fleet) -> Fleet:
    tell(fleet.lb, LB)
    tell(fleet.p0, PREFILL)
    tell(fleet.d0, DECODE)
    return fleet


def test_a_room_is_one_waterfall_of_all_daemons(told: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("trace", "room", HEX, "-c", told.config)
    assert (said.code, said.err) == (Exit.OK, "")
    lines = said.out.splitlines()
    assert lines[0].startswith(f"room {HEX[:8]} (attempt 1)  p0 -> d0")
    assert {line.split()[0] for line in lines if "|" in line} >= {
        "lb.dispatch", "p.forward", "kv.write", "d.running",
    }  # fmt: skip


def test_an_unambiguous_prefix_is_enough(told: Fleet, pdctl: Pdctl) -> None:
    told.d0.routes["/rooms"] = told.p0.routes["/rooms"] = told.lb.routes["/rooms"] = (
        200,
        {"rooms": msgspec.to_builtins([RoomRow(ROOM, 1, "done", 1.0, "", 9, 4)])},
    )
    assert pdctl("trace", "room", HEX[:3], "-c", told.config).code == Exit.OK


def test_an_ambiguous_prefix_lists_the_candidates(told: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("trace", "room", HEX[:3], "-c", told.config)
    assert said.code == Exit.USAGE
    assert HEX in said.err
    assert f"{OTHER:014x}" in said.err


def test_a_prefix_of_nothing_is_not_found(told: Fleet, pdctl: Pdctl) -> None:
    assert pdctl("trace", "room", "fff", "-c", told.config).code == Exit.NOT_FOUND


def test_a_room_that_nobody_knows_is_not_found(told: Fleet, pdctl: Pdctl) -> None:
    assert pdctl("trace", "room", "0" * 13 + "1", "-c", told.config).code == Exit.NOT_FOUND


@pytest.mark.parametrize("word", ["xyz", "", "0" * 15])
def test_what_is_no_room_is_a_usage_error(word: str, told: Fleet, pdctl: Pdctl) -> None:
    assert pdctl("trace", "room", word, "-c", told.config).code == Exit.USAGE


def test_an_attempt_can_be_chosen(told: Fleet, pdctl: Pdctl) -> None:
    second = msgspec.structs.replace(PREFILL, attempt=2)
    tell(told.p0, PREFILL, second)
    base = ("trace", "room", HEX, "-c", told.config)
    assert "(attempt 2)" in pdctl(*base).out
    assert "(attempt 1)" in pdctl(*base, "--attempt", "1").out
    assert pdctl(*base, "--attempt", "3").code == Exit.NOT_FOUND


def test_json_keeps_its_contract_also_of_a_failure(
    told: Fleet, pdctl: Pdctl, keeps_contract: Callable[..., Any]
) -> None:
    base = ("trace", "room", HEX, "-c", told.config, "-o", "json")
    assert keeps_contract("trace", pdctl(*base).out)["outcome"] == "ok"
    tell(told.p0, ended(PREFILL, Failure(Cause.TRANSFER_FAILED, "inflight", "d0", "cut"), 100.5))
    document = keeps_contract("trace", pdctl(*base).out)
    assert document["first_cause"]["cause"] == "transfer.failed"
    assert document["first_leg"] == "p0"


def test_a_silent_daemon_is_named_and_the_rest_is_shown(told: Fleet, pdctl: Pdctl) -> None:
    told.p0.stop()
    said = pdctl("trace", "room", HEX, "-c", told.config)
    assert said.code == Exit.OK
    assert said.err.startswith("without the story of p0: ")
    assert "note: no prefill knows this room" in said.out


@pytest.mark.parametrize("form", ["perfetto", "html"])
def test_a_room_is_exported_in_the_form_that_is_asked_for(
    told: Fleet, pdctl: Pdctl, form: str
) -> None:
    said = pdctl("trace", "room", HEX, "-c", told.config, "--export", form)
    assert (said.code, said.err) == (Exit.OK, "")
    assert said.out.startswith('{"displayTimeUnit"' if form == "perfetto" else "<!doctype html>")


def test_the_slowest_rooms_are_listed(
    told: Fleet, pdctl: Pdctl, keeps_contract: Callable[..., Any]
) -> None:
    said = pdctl("trace", "--slowest", "3", "-c", told.config)
    assert said.code == Exit.OK, said.err
    head, row = said.out.splitlines()
    assert head.split()[:3] == ["ROOM", "TRY", "PAIR"]
    assert row.split()[:6] == [HEX[:8], "1", "p0", "->", "d0", "ok"]
    as_json = pdctl("trace", "--slowest", "3", "-c", told.config, "-o", "json").out
    assert keeps_contract("slowest", as_json)["rooms"][0]["room"] == HEX


def test_the_longest_part_is_not_guessed_where_a_worker_forgot_the_room(
    told: Fleet, pdctl: Pdctl
) -> None:
    asked = ("trace", "--slowest", "3", "-c", told.config)
    assert "forgot" not in pdctl(*asked).out
    tell(told.p0)
    assert pdctl(*asked).out.splitlines()[1].endswith("? (p0 forgot it)")


def test_trace_alone_asks_which(told: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("trace", "-c", told.config)
    assert (said.code, said.err.splitlines()[0]) == (Exit.USAGE, "pdctl: which request?")


def test_waits_are_compared_with_what_is_usual(told: Fleet, pdctl: Pdctl) -> None:
    counted = {"counts": [0] * 11 + [30], "sum_s": 9000.0}
    routes = told.d0.routes["/status"]
    assert isinstance(routes, tuple)
    told.d0.routes["/status"] = 200, {**routes[1], "stage_times": {"prealloc": counted}}
    said = pdctl("trace", "room", HEX, "-c", told.config)
    assert said.out.splitlines()[-1] == "nothing waited longer than usual"
