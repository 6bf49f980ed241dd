"""The cluster at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdctl.commands import top as command
from pdctl.commands.top import gauge
from pdctl.errors import Exit
from tests.support.fake_fleet import DECODE_ROOMS, Fleet, Said, worker_status

Pdctl = Callable[..., Said]


def test_one_look_is_a_row_per_daemon(fleet: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("top", "-c", fleet.config, "-n", "1")
    assert (said.code, said.err) == (Exit.OK, "")
    lines = said.out.splitlines()
    assert lines[0] == "HEALTH_OK"
    assert lines[1].startswith("fake  ")
    assert [line.split()[0] for line in lines[2:]] == ["NAME", "p0", "d0", "lb"]
    assert "bootstrap 2  waiting 1  forward 1  inflight 3" in said.out


def test_json_is_one_object_a_look_and_keeps_its_contract(
    fleet: Fleet, pdctl: Pdctl, keeps_contract: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = iter((10.0, 40.0))

    def status(_: bytes) -> tuple[int, Any]:
        counters = {"output_tokens": next(made)}
        return 200, worker_status("d0", "decode", DECODE_ROOMS, counters=counters, itl_p50_s=0.02)

    fleet.d0.routes["/status"] = status
    monkeypatch.setattr(command.time, "sleep", lambda _: None)
    said = pdctl("top", "-c", fleet.config, "-n", "2", "-o", "json")
    first, second = [keeps_contract("top", line) for line in said.out.splitlines()]
    assert first["tokens_per_s"] is None
    assert second["tokens_per_s"] > 0
    assert second["daemons"][1]["itl_p50_s"] == 0.02


@pytest.mark.parametrize(
    ("share", "shown"),
    [(None, "-"), (0.0, "░░░░░░░░░░   0%"), (0.31, "███░░░░░░░  31%"), (1.0, "██████████ 100%")],
)
def test_a_share_is_a_bar_with_its_number(share: float | None, shown: str) -> None:
    assert gauge(share) == shown


@pytest.mark.parametrize(("words", "slept_s"), [("--watch", 2.0), ("--watch=5", 5.0)])
def test_watch_means_here_what_it_means_elsewhere(
    words: str, slept_s: float, fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(command.time, "sleep", slept.append)
    assert pdctl("top", words, "-n", "2", "-c", fleet.config).code == Exit.OK
    assert slept == [slept_s]
