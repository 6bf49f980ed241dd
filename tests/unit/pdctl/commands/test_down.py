"""Ending what up started, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdctl import stopping
from pdctl.errors import Exit
from pdctl.processes import Process, process_of
from pdctl.runs import Child, Run, make_run_directory, write_run
from tests.support.fake_fleet import Said

Pdctl = Callable[..., Said]
POLITE = "import time; print('here', flush=True); time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('here', flush=True); time.sleep(60)"
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text("name: c\n")
    return path


@pytest.fixture
def start() -> Iterator[Callable[[str], Process]]:
    running: list[subprocess.Popen[str]] = []

    def launch(script: str) -> Process:
        child = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        process = process_of(child.pid)
        assert process is not None
        return process

    yield launch
    for child in running:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def remember(config: Path, supervisor: Process, *children: Process) -> None:
    run = Run(
        cluster="c",
        config=str(config),
        config_hash="",
        host="local",
        supervisor_pid=supervisor.pid,
        supervisor_started=supervisor.started,
        began_s=time.time(),
        children=[
            Child(instance=f"p{i}", role="prefill", pid=child.pid, started=child.started)
            for i, child in enumerate(children)
        ],
    )
    write_run(make_run_directory("c"), run)


GONE = Process(2**22, 1)


def test_what_is_not_up_is_no_error(config: Path, pdctl: Pdctl) -> None:
    said = pdctl("down", "-c", config, "--yes")
    assert (said.code, said.err) == (Exit.OK, "cluster c is not up here\n")


def test_without_a_supervisor_its_daemons_are_ended_by_hand(
    config: Path, pdctl: Pdctl, start: Callable[[str], Process]
) -> None:
    child = start(POLITE)
    remember(config, GONE, child)
    said = pdctl("down", "-c", config, "--yes")
    assert said.code == Exit.OK
    assert "without it" in said.err
    assert not child.is_alive


def test_the_supervisor_is_asked_when_there_is_one(
    config: Path, pdctl: Pdctl, start: Callable[[str], Process]
) -> None:
    supervisor = start(POLITE)
    remember(config, supervisor)
    assert pdctl("down", "-c", config, "--yes").code == Exit.OK
    assert not supervisor.is_alive


def test_who_stays_beyond_the_deadline_is_killed_and_named(
    config: Path, pdctl: Pdctl, start: Callable[[str], Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "GRACE_S", 0.05)
    child = start(STUBBORN)
    remember(config, GONE, child)
    said = pdctl("down", "-c", config, "--yes", "--deadline", "0")
    assert said.code == Exit.TIMEOUT
    assert "killed after the deadline: p0" in said.err
    assert not child.is_alive


def test_a_supervisor_that_stays_is_killed_with_its_daemons(
    config: Path, pdctl: Pdctl, start: Callable[[str], Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "GRACE_S", 0.05)
    monkeypatch.setattr("pdctl.commands.down.LEAD_S", 0.05)
    supervisor, child = start(STUBBORN), start(STUBBORN)
    remember(config, supervisor, child)
    assert pdctl("down", "-c", config, "--yes", "--deadline", "0").code == Exit.TIMEOUT
    assert not supervisor.is_alive
    assert not child.is_alive


def test_a_process_that_got_a_reused_pid_is_left_alone(
    config: Path, pdctl: Pdctl, start: Callable[[str], Process]
) -> None:
    stranger = start(POLITE)
    remember(config, GONE, Process(stranger.pid, stranger.started - 1))
    assert pdctl("down", "-c", config, "--yes").err == "cluster c is not up here\n"
    assert stranger.is_alive


def test_without_a_terminal_or_yes_nothing_is_ended(
    config: Path, pdctl: Pdctl, start: Callable[[str], Process]
) -> None:
    child = start(POLITE)
    remember(config, GONE, child)
    assert pdctl("down", "-c", config).code == Exit.USAGE
    assert child.is_alive
