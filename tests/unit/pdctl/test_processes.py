"""Processes in one life."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl.processes import Process, process_of, start_detached

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEPS, start_new_session=True) as child:
        yield child
        child.kill()


def found(pid: int) -> Process:
    process = process_of(pid)
    assert process is not None
    return process


def test_this_process_is_alive() -> None:
    assert found(os.getpid()).is_alive


def test_a_pid_with_another_start_time_is_another_process(
    sleeper: subprocess.Popen[bytes],
) -> None:
    reused = Process(sleeper.pid, found(sleeper.pid).started - 1)
    assert not reused.is_alive
    assert not reused.send(signal.SIGKILL)
    assert reused.wait(0)
    assert sleeper.poll() is None


def test_a_signal_ends_it_and_wait_sees_that(sleeper: subprocess.Popen[bytes]) -> None:
    process = found(sleeper.pid)
    assert not process.wait(0.01)
    assert process.send(signal.SIGTERM)
    assert process.wait(10)
    assert not process.is_alive  # although nobody has waited for it yet


def test_a_group_is_killed_with_its_leader() -> None:
    script = (
        "import subprocess, sys; "
        f"child = subprocess.Popen({SLEEPS!r}); print(child.pid, flush=True); child.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        member = found(int(leader.stdout.readline()))
        found(leader.pid).kill_group()
        assert member.wait(10)


def test_a_detached_process_has_a_session_of_its_own_and_a_log(tmp_path: Path) -> None:
    script = "import os, sys; print(os.getsid(0) == os.getpid()); print('err', file=sys.stderr)"
    process = start_detached([sys.executable, "-c", script], tmp_path / "log")
    assert process.wait(20)
    os.waitpid(process.pid, 0)
    assert sorted((tmp_path / "log").read_text().split()) == ["True", "err"]


def test_a_pid_that_nobody_has_is_nobody() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    gone = Process(child.pid, 1)
    assert not gone.is_alive
    assert not gone.send(signal.SIGTERM)
    assert gone.wait(0)
