"""Can this host run its part?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdctl import checks
from pdctl.errors import Exit
from pdctl.finding import Check, Status
from tests.support.fake_fleet import Fleet, Said

Pdctl = Callable[..., Said]
OK = Check("python", Status.OK, "3.11.7")
WARN = Check("nofile", Status.WARN, "1024", "ulimit -n 16384")
FAIL = Check("model", Status.FAIL, "not there", "scripts/install makes it")


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_up(*found: Check) -> None:
        monkeypatch.setattr(checks, "checks", lambda *_, **__: iter(found))

    return set_up


def test_each_check_is_a_row_with_its_hint(pdctl: Pdctl, finds: Callable[..., None]) -> None:
    finds(OK, WARN)
    said = pdctl("doctor")
    assert [line.split() for line in said.out.splitlines()] == [
        ["CHECK", "STATUS", "VALUE", "HINT"],
        ["python", "ok", "3.11.7", "-"],
        ["nofile", "warn", "1024", "ulimit", "-n", "16384"],
    ]


def test_warnings_are_exit_0_and_failures_exit_1(pdctl: Pdctl, finds: Callable[..., None]) -> None:
    finds(OK, WARN)
    assert pdctl("doctor").code == Exit.OK
    finds(OK, WARN, FAIL)
    assert pdctl("doctor").code == Exit.FAILED


def test_json_keeps_its_contract(
    pdctl: Pdctl, finds: Callable[..., None], keeps_contract: Callable[..., Any]
) -> None:
    finds(OK, FAIL)
    document = keeps_contract("doctor", pdctl("doctor", "-o", "json").out)
    assert document["checks"][1] == {
        "name": "model",
        "status": "fail",
        "value": "not there",
        "hint": "scripts/install makes it",
        "pair": None,
        "bytes_per_s": None,
    }


def test_this_very_host_is_looked_at(pdctl: Pdctl, keeps_contract: Callable[..., Any]) -> None:
    found = keeps_contract("doctor", pdctl("doctor", "-o", "json").out)["checks"]
    by_name = {check["name"]: check["status"] for check in found}
    assert by_name["python"] == by_name["mooncake"] == "ok"


@pytest.mark.parametrize(
    ("found", "code", "line"),
    [
        ((OK,), 0, "PD OK - 3.11.7 | checks=1 bad=0"),
        ((OK, WARN), 1, "PD WARNING - nofile: 1024 | checks=2 bad=1"),
        ((WARN, FAIL), 2, "PD CRITICAL - model: not there; nofile: 1024 | checks=2 bad=2"),
    ],
)
def test_a_probe_gets_one_line_and_its_own_exit_codes(
    pdctl: Pdctl, finds: Callable[..., None], found: tuple[Check, ...], code: int, line: str
) -> None:
    finds(*found)
    assert pdctl("doctor", "--nagios") == (code, f"{line}\n", "")


def test_pairs_that_were_tried_are_a_matrix(pdctl: Pdctl, finds: Callable[..., None]) -> None:
    finds(Check("pair-p0-d0", Status.OK, "verified", "", ("p0", "d0"), 3.1e9))
    lines = pdctl("doctor").out.splitlines()
    assert [line.split() for line in lines[-2:]] == [["WRITES", "to", "d0"], ["p0", "3.1", "GB/s"]]


def test_one_check_is_made_alone(pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object) -> Check:
        raise AssertionError("this one was not asked for")

    monkeypatch.setattr(checks, "check_mooncake", no)
    said = pdctl("check", "memlock", "-o", "name")
    assert (said.code, said.out) == (Exit.OK, "memlock\n")


def test_a_check_that_is_none_lists_those_that_are(fleet: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("check", "bogus", "-c", fleet.config)
    assert said.code == Exit.NOT_FOUND
    for name in ("python", "port-lb", "clock-p0", "pair-p0-d0"):
        assert name in said.err


def test_before_a_start_only_this_host_is_looked_at(
    fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "check_mooncake", lambda: OK)
    names = pdctl("doctor", "--host-only", "-c", fleet.config, "-o", "name").out.split()
    assert "port-p0" not in names  # chosen at its start
    assert "port-lb" in names
    assert not [name for name in names if name.startswith(("pair-", "clock-", "reach-"))]


def test_a_cluster_that_is_not_up_is_a_warning(
    fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "check_mooncake", lambda: OK)
    fleet.bootstrap.stop()
    said = pdctl("check", "phone-book", "-c", fleet.config)
    assert (said.code, "warn" in said.out) == (Exit.OK, True)
