"""The home screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdctl import render
from pdctl.errors import Exit
from tests.support.fake_fleet import DECODE_ROOMS, PREFILL_ROOMS, Fleet, Said, worker_status

Pdctl = Callable[..., Said]


def test_health_comes_first_then_a_row_per_daemon(fleet: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("status", "-c", fleet.config)
    assert (said.code, said.err) == (Exit.OK, "")
    lines = said.out.splitlines()
    assert lines[0] == "HEALTH_OK"
    assert [line.split()[0] for line in lines[1:]] == ["NAME", "bootstrap", "p0", "d0", "lb"]
    p0 = lines[3].split()
    assert p0[1:9] == ["prefill", "local", "ready", "2/1/1/3", "41", "1", "812", "ms"]
    assert lines[4].split()[4] == "1/0/28/3"


def test_the_pool_of_layers_with_a_window_stands_beside_the_other_one(
    fleet: Fleet, pdctl: Pdctl
) -> None:
    window = {"free": 20, "cached": 3, "request": 77, "writer": 0, "quarantined": 0}
    said = worker_status("d0", "decode", DECODE_ROOMS, window_pages=window)
    fleet.d0.routes["/status"] = 200, said
    p0, d0 = pdctl("status", "-c", fleet.config).out.splitlines()[3:5]
    assert "(77 window)" in d0
    assert "window" not in p0


def test_json_keeps_its_contract(
    fleet: Fleet, pdctl: Pdctl, keeps_contract: Callable[..., Any]
) -> None:
    document = keeps_contract("status", pdctl("status", "-c", fleet.config, "-o", "json").out)
    p0 = document["daemons"][1]
    assert (p0["name"], p0["rooms"], p0["kv_share"], p0["up_s"]) == ("p0", 7, 0.41, 7300.0)


def test_json_of_a_dead_cluster_keeps_it_too(
    fleet: Fleet, pdctl: Pdctl, keeps_contract: Callable[..., Any]
) -> None:
    for daemon in (fleet.bootstrap, fleet.p0, fleet.d0, fleet.lb):
        daemon.stop()
    said = pdctl("status", "-c", fleet.config, "-o", "json")
    assert said.code == Exit.UNREACHABLE
    assert said.err == "nobody answers; pdctl up starts this host's part\n"
    document = keeps_contract("status", said.out)
    states = {daemon["name"]: daemon["state"] for daemon in document["daemons"]}
    assert states == {"bootstrap": "silent", "p0": "absent", "d0": "absent", "lb": "silent"}


def test_a_degraded_cluster_is_exit_4_with_its_reason(fleet: Fleet, pdctl: Pdctl) -> None:
    draining = worker_status("d0", "decode", DECODE_ROOMS, state="draining")
    fleet.d0.routes["/status"] = 200, draining
    said = pdctl("status", "-c", fleet.config)
    assert said.code == Exit.DEGRADED
    assert "d0 draining (32 rooms left)" in said.out.splitlines()[0]


def test_wide_tells_what_carries_the_bytes_to_each_decode_and_why(
    fleet: Fleet, pdctl: Pdctl, keeps_contract: Callable[..., Any]
) -> None:
    asked = ("status", "-c", fleet.config, "-o")
    assert "d0 " not in pdctl(*asked, "wide").out.splitlines()[3]
    why = "tcp (not cma: Operation not permitted)"
    wires = {"d0": {"transport": why, "bytes": 5}, "d1": {"transport": ""}}
    prefill = worker_status("p0", "prefill", PREFILL_ROOMS, wires=wires)
    fleet.p0.routes["/status"] = 200, prefill
    assert f"  d0 {why}  " in pdctl(*asked, "wide").out.splitlines()[3]
    document = keeps_contract("status", pdctl(*asked, "json").out)
    assert document["daemons"][1]["wires"]["d0"]["transport"] == why


def test_a_narrow_terminal_folds_why_it_is_not_cma(
    fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    wires = {"d0": {"transport": "tcp (not cma: Operation not permitted)"}}
    prefill = worker_status("p0", "prefill", PREFILL_ROOMS, wires=wires)
    fleet.p0.routes["/status"] = 200, prefill
    monkeypatch.setenv("COLUMNS", "190")
    lines = pdctl("status", "-c", fleet.config, "-o", "wide").out.splitlines()
    at = lines[1].index("TRANSPORT")
    told = "".join(line[at : lines[1].index("PEERS")] for line in lines)
    assert "d0tcp(notcma:Operationnotpermitted)" in told.replace(" ", "")
    assert not any("d0 tcp" in line and "permitted)" in line for line in lines), "unfolded"


def test_wide_adds_addresses_and_names_are_names(fleet: Fleet, pdctl: Pdctl) -> None:
    assert f"127.0.0.1:{fleet.p0.port}" in pdctl("status", "-c", fleet.config, "-o", "wide").out
    assert pdctl("status", "-c", fleet.config, "-o", "name").out.split() == [
        "bootstrap", "p0", "d0", "lb",
    ]  # fmt: skip


def test_watch_is_one_object_a_line(
    fleet: Fleet,
    pdctl: Pdctl,
    keeps_contract: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(render.time, "sleep", sleep)
    said = pdctl("status", "-c", fleet.config, "-o", "json", "--watch=0.5")
    assert pauses == [0.5, 0.5]
    assert [keeps_contract("status", line)["kind"] for line in said.out.splitlines()] == [
        "status", "status",
    ]  # fmt: skip


def test_a_bare_watch_has_a_period_of_its_own(
    fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        assert seconds == 2.0
        raise KeyboardInterrupt

    monkeypatch.setattr(render.time, "sleep", sleep)
    assert pdctl("status", "-c", fleet.config, "--watch").code == 130
