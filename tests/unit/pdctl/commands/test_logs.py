"""What the daemons of this host write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.commands import logs
from pdctl.errors import Exit
from pdctl.processes import process_of
from pdctl.runs import Child, Run, log_path, make_run_directory, write_run
from tests.support.fake_fleet import Said

Pdctl = Callable[..., Said]


def line(instance: str, second: int) -> str:
    return (
        f'{{"event": "room.closed", "level": "info", "instance": "{instance}", '
        f'"timestamp": "2026-01-02T03:04:0{second}.000Z"}}\n'
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text("name: c\n")
    own = process_of(os.getpid())
    assert own is not None
    run = Run(
        cluster="c",
        config=str(path),
        config_hash="",
        host="local",
        supervisor_pid=own.pid,
        supervisor_started=own.started,
        began_s=0,
        children=[Child(instance="p0", role="prefill"), Child(instance="d0", role="decode")],
    )
    write_run(make_run_directory("c"), run)
    log_path("c", "p0").write_text(line("p0", 1) + line("p0", 3))
    log_path("c", "d0").write_text(line("d0", 2))
    return path


def test_one_daemons_lines_are_shown_for_people(config: Path, pdctl: Pdctl) -> None:
    said = pdctl("logs", "p0", "-c", config)
    assert [text.split() for text in said.out.splitlines()] == [
        ["03:04:01.000", "info", "p0", "room.closed"],
        ["03:04:03.000", "info", "p0", "room.closed"],
    ]


def test_all_daemons_are_told_by_time(config: Path, pdctl: Pdctl) -> None:
    out = pdctl("logs", "-c", config).out
    assert [text.split()[2] for text in out.splitlines()] == ["p0", "d0", "p0"]
    out = pdctl("logs", "-c", config, "-n", "2").out
    assert [text.split()[2] for text in out.splitlines()] == ["d0", "p0"]


def test_raw_is_as_written(config: Path, pdctl: Pdctl) -> None:
    assert pdctl("logs", "d0", "-c", config, "--raw").out == line("d0", 2)


def test_no_lines_can_be_asked_for(config: Path, pdctl: Pdctl) -> None:
    assert pdctl("logs", "-c", config, "-n", "0").out == ""


def test_new_lines_are_followed(
    config: Path, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt
        with log_path("c", "p0").open("a") as log:
            log.write(line("p0", 9))

    monkeypatch.setattr(logs.time, "sleep", sleep)
    said = pdctl("logs", "p0", "-c", config, "-n", "0", "-f")
    assert said.code == 130
    assert said.out.split()[0] == "03:04:09.000"


def test_a_stranger_has_no_logs_here(config: Path, pdctl: Pdctl) -> None:
    said = pdctl("logs", "p9", "-c", config)
    assert said.code == Exit.NOT_FOUND
    assert "p0, d0" in said.err


def test_a_cluster_that_was_never_up_has_none(tmp_path: Path, pdctl: Pdctl) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("name: other\n")
    assert pdctl("logs", "-c", path).code == Exit.NOT_FOUND
