"""Can this host run its part?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdctl import checks
from pdctl.checks import Check, Status
from pdctl.errors import Exit
from tests.support.fake_fleet import Said

Pdctl = Callable[..., Said]
OK = Check("python", Status.OK, "3.11.7")
WARN = Check("nofile", Status.WARN, "1024", "ulimit -n 16384")
FAIL = Check("model", Status.FAIL, "not there", "scripts/install makes it")


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_up(*found: Check) -> None:
        monkeypatch.setattr(checks, "checks", lambda *_: iter(found))

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
    }


def test_this_very_host_is_looked_at(pdctl: Pdctl, keeps_contract: Callable[..., Any]) -> None:
    found = keeps_contract("doctor", pdctl("doctor", "-o", "json").out)["checks"]
    by_name = {check["name"]: check["status"] for check in found}
    assert by_name["python"] == by_name["mooncake"] == "ok"
