"""Fixtures: a cluster of fake daemons, and pdctl as a function."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import pdctl as pdctl_package
from pdctl.__main__ import run
from tests.support.fake_fleet import (
    DECODE_ROOMS,
    PREFILL_ROOMS,
    FakeDaemon,
    Fleet,
    Said,
    worker_status,
)
from tests.support.fake_systemctl import FakeSystemctl


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    daemons = [FakeDaemon().start() for _ in range(4)]
    bootstrap, p0, d0, lb = daemons
    config = tmp_path / "cluster.yaml"
    config.write_text(
        f"name: fake\nbootstrap: {{port: {bootstrap.port}}}\nlb: {{port: {lb.port}}}\n"
        "prefill: {p0: {}}\ndecode: {d0: {}}\n"
    )
    built = Fleet(config, bootstrap, p0, d0, lb)
    bootstrap.routes["/instances"] = 200, built.instances()
    p0.routes["/status"] = 200, worker_status("p0", "prefill", PREFILL_ROOMS, ttft_p99_s=0.812)
    d0.routes["/status"] = 200, worker_status("d0", "decode", DECODE_ROOMS, itl_p99_s=0.038)
    lb_status = worker_status("lb", "lb", {"dispatch": 0, "stream": 4}, pages={}, pages_total=0)
    lb.routes["/status"] = 200, lb_status
    for daemon in daemons:
        daemon.routes["/health"] = 200, {"status": "ok"}
    yield built
    for daemon in daemons:
        daemon.stop()


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep runs and models of the person who tests out of the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def pdctl(capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*arguments: object) -> Said:
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Said(code, out, err)

    return call


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemctl:
    """Stand in for systemctl and journalctl."""
    fake = FakeSystemctl.made(tmp_path / "systemctl")
    monkeypatch.setenv("PATH", str(fake.folder), prepend=":")
    return fake


@pytest.fixture
def keeps_contract() -> Callable[[str, str], Any]:
    """Return a check that a JSON output keeps its published schema; it returns the document."""

    def check(schema: str, output: str) -> Any:
        document = json.loads(output)
        path = Path(pdctl_package.__file__).parent / "schemas" / f"{schema}.json"
        jsonschema.validate(document, json.loads(path.read_text()))
        return document

    return check
