"""Daemons are kept running, with fake ones that end as they are told."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemons.cluster.load import load
from daemons.protocol.topology import Role
from pdctl import supervisor
from pdctl.processes import Process
from pdctl.runs import log_path, read_run
from pdctl.supervisor import Launch, Supervisor, ask_restart, launches, prepare

STAYS = "import time; print('here', flush=True); time.sleep(60)"
FAST_S = 0.01


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Supervisor]]:
    """Return a maker of supervisors over Python one-liners; what they start is ended."""
    monkeypatch.setattr(supervisor, "PAUSE_FIRST_S", FAST_S)
    path = tmp_path / "c.yaml"
    path.write_text("name: c\n")
    built: list[Supervisor] = []

    def make(**scripts: str) -> Supervisor:
        planned = [
            Launch(name, Role.LB, (sys.executable, "-c", script))
            for name, script in scripts.items()
        ]
        monkeypatch.setattr(supervisor, "launches", lambda *_: planned)
        one = prepare(load(path), "local")
        for life in one.lives:
            life.pause_s = FAST_S
        built.append(one)
        one.start()
        return one

    yield make
    for one in built:
        one.stop(0)
        one.close()


def until(one: Supervisor, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, one.run.children
        one.step(0.05)


def test_this_hosts_daemons_are_launched_by_module_in_starting_order(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "name: c\nhosts: {a: {}, b: {}}\nbootstrap: {host: a}\nlb: {host: a}\n"
        "prefill: {p0: {host: a}}\ndecode: {d0: {host: b}}\n"
    )
    file = load(path)
    assert [launch.instance for launch in launches(file, "a")] == ["bootstrap", "p0", "lb"]
    told = [launch.argv[-1] for launch in launches(file, "a", ["--no-prefix-cache"])]
    assert told == [str(path), "--no-prefix-cache", str(path)]
    (only,) = launches(file, "b")
    assert only.argv == (
        sys.executable, "-m", "daemons.decode", "--config", str(path), "--instance", "d0",
    )  # fmt: skip


def test_the_run_file_names_each_process(made: Callable[..., Supervisor]) -> None:
    one = made(a=STAYS, b=STAYS)
    run = read_run(one.directory)
    assert run is not None
    assert [child.instance for child in run.alive] == ["a", "b"]
    assert run.supervisor.pid == os.getpid()


def test_what_a_daemon_says_goes_into_its_log(made: Callable[..., Supervisor]) -> None:
    one = made(
        a="import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(78)"
    )
    until(one, lambda: one.is_idle)
    assert log_path("c", "a").read_text() == "out\nerr\n"


def test_a_daemon_that_dies_is_started_again(made: Callable[..., Supervisor]) -> None:
    one = made(a=STAYS)
    child = one.run.children[0]
    first = child.process
    first.send(signal.SIGKILL)
    until(one, lambda: child.restarts == 1)
    assert child.exit_code == -signal.SIGKILL
    assert child.state == "running"
    assert child.process.is_alive
    assert child.process != first
    run = read_run(one.directory)
    assert run is not None
    assert run.children == one.run.children


def test_pauses_between_lives_double_up_to_a_limit(
    made: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_LIMIT_S", FAST_S * 4)
    one = made(a="import sys; sys.exit(1)")
    seen = []
    for lives in range(1, 5):
        until(one, lambda wanted=lives: one.run.children[0].restarts >= wanted)  # type: ignore[misc]
        seen.append(one.lives[0].pause_s)
    assert seen == pytest.approx([FAST_S * 2, FAST_S * 4, FAST_S * 4, FAST_S * 4])


@pytest.mark.parametrize(("code", "state"), [(0, "left"), (78, "failed")])
def test_drained_and_bad_config_are_final(
    code: int, state: str, made: Callable[..., Supervisor]
) -> None:
    one = made(a=f"import sys; sys.exit({code})")
    until(one, lambda: one.is_idle)
    child = one.run.children[0]
    assert (child.state, child.exit_code, child.restarts) == (state, code, 0)


def test_what_a_dead_daemon_leaves_behind_is_killed(made: Callable[..., Supervisor]) -> None:
    script = (
        "import subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        "print(child.pid, flush=True); sys.exit(78)"
    )
    one = made(a=script)
    until(one, lambda: one.is_idle)
    pid = int(log_path("c", "a").read_text())
    stat = Path(f"/proc/{pid}/stat")
    end = time.monotonic() + 10
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_stop_ends_everybody_and_starts_nobody_again(made: Callable[..., Supervisor]) -> None:
    one = made(a=STAYS, b="import sys; sys.exit(1)")
    until(one, lambda: one.run.children[1].restarts >= 1)
    assert one.stop(10) == []
    assert one.is_idle
    assert [child.state for child in one.run.children] == ["left", "left"]
    run = read_run(one.directory)
    assert run is not None
    assert run.stopping
    assert not run.alive


def test_a_signal_is_a_wish_to_stop(made: Callable[..., Supervisor]) -> None:
    one = made(a=STAYS)
    os.kill(os.getpid(), signal.SIGTERM)
    one.step(10)
    assert one.stop_asked == 1


def test_a_long_log_is_put_aside_at_a_start(
    made: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES_LIMIT", 3)
    one = made(a="import sys; print('four'); sys.exit(1)")
    until(one, lambda: one.run.children[0].restarts >= 1)
    assert log_path("c", "a").with_suffix(".log.1").read_text() == "four\n"


def test_process_is_a_pid_with_its_start() -> None:
    assert Process(1, 2) != Process(1, 3)


def test_a_restart_that_is_asked_for_is_no_end(made: Callable[..., Supervisor]) -> None:
    drains = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); time.sleep(60)"
    one = made(a=drains, b=STAYS)
    first, other = (child.process for child in one.run.children)
    assert ask_restart(one.directory, one.run, "a")
    until(one, lambda: one.run.children[0].restarts == 1)
    assert one.run.children[0].process not in (first, other)
    assert one.run.children[1].process == other
    assert not list(one.directory.glob("restart-*"))


def test_nobody_restarts_a_daemon_of_another_run(made: Callable[..., Supervisor]) -> None:
    one = made(a=STAYS)
    assert not ask_restart(one.directory, one.run, "z")
