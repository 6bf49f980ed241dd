"""Starting a cluster: fake daemons in the foreground, real ones (without workers) detached."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemons.cluster.load import load
from daemons.protocol.topology import Role
from pdctl import ports, render, supervisor
from pdctl.commands import up
from pdctl.errors import Exit
from pdctl.processes import process_of
from pdctl.runs import (
    Run,
    log_path,
    make_run_directory,
    read_run,
    run_directory,
    write_run,
)
from pdctl.supervisor import Launch
from tests.support.fake_fleet import Fleet, Said
from tests.support.fake_systemctl import FakeSystemctl
from tests.support.ports import free_port

Pdctl = Callable[..., Said]
STAYS = "import time; print('here', flush=True); time.sleep(60)"
ROLES = {"bootstrap": Role.BOOTSTRAP, "p0": Role.PREFILL, "d0": Role.DECODE, "lb": Role.LB}


def run_of(name: str) -> Run | None:
    return read_run(run_directory(name))


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def starts(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fleet]:
    """Let ``up`` start these one-liners, while the fake fleet answers for them."""
    model = fleet.config.parent / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (model / name).write_text("{}")
    fleet.config.write_text(fleet.config.read_text() + f"model: {model}\n")
    monkeypatch.setattr(ports, "taken", lambda *_: iter(()))
    monkeypatch.setattr(up, "LOOK_S", 0.01)
    monkeypatch.setattr(up, "STOP_S", 5.0)

    def set_up(**scripts: str) -> Fleet:
        planned = [
            Launch(name, role, (sys.executable, "-c", scripts.get(name, STAYS)))
            for name, role in ROLES.items()
        ]
        monkeypatch.setattr(supervisor, "launches", lambda *_: planned)
        return fleet

    return set_up


@pytest.fixture
def then() -> Iterator[Callable[..., None]]:
    """Run a function beside ``up``, which holds this thread."""
    threads: list[threading.Thread] = []

    def beside(deed: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=deed))
        threads[-1].start()

    yield beside
    for thread in threads:
        thread.join(30)


@pytest.fixture
def serves(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when ``up`` has said that everybody serves."""
    event = threading.Event()

    def say(words: str) -> None:
        render.say(words)
        if words == "Ctrl-C stops it":
            event.set()

    monkeypatch.setattr(up, "say", say)
    return event


def is_running() -> bool:
    run = run_of("fake")
    return run is not None and len(run.alive) == 4


def test_a_dry_run_prints_what_would_be_started(fleet: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("up", "-c", fleet.config, "--dry-run")
    assert said.code == Exit.OK
    assert [line.split(":")[0] for line in said.out.splitlines()] == [*ROLES]
    assert run_of("fake") is None
    assert "--no-prefix-cache" not in said.out
    plain = pdctl("up", "-c", fleet.config, "--dry-run", "--no-prefix-cache")
    told = [line.split(":")[0] for line in plain.out.splitlines() if "--no-prefix-cache" in line]
    assert told == ["p0", "d0"]


def test_a_signal_is_an_orderly_stop(
    starts: Callable[..., Fleet], pdctl: Pdctl, then: Callable[..., None]
) -> None:
    fleet = starts()

    def stop() -> None:
        wait_for(is_running)
        os.kill(os.getpid(), signal.SIGTERM)

    then(stop)
    said = pdctl("up", "-c", fleet.config)
    assert said.code == Exit.OK
    assert "stopping" in said.err
    run = run_of("fake")
    assert run is not None
    assert not run.alive


def test_progress_names_each_daemon_that_comes_up(
    starts: Callable[..., Fleet],
    pdctl: Pdctl,
    then: Callable[..., None],
    serves: threading.Event,
) -> None:
    fleet = starts()
    fleet.d0.routes["/health"] = 503, {"error": {"message": "loading"}}

    def open_and_stop() -> None:
        wait_for(is_running)
        fleet.d0.routes["/health"] = 200, {}
        assert serves.wait(30)
        os.kill(os.getpid(), signal.SIGTERM)

    then(open_and_stop)
    said = pdctl("up", "-c", fleet.config)
    up_lines = [line.split()[0] for line in said.err.splitlines() if " is up after " in line]
    assert sorted(up_lines) == ["bootstrap", "d0", "lb", "p0"]


def test_a_daemon_that_ends_while_starting_takes_the_others_down(
    starts: Callable[..., Fleet], pdctl: Pdctl
) -> None:
    fleet = starts(p0="import sys; print('no weights here'); sys.exit(1)")
    fleet.bootstrap.routes["/instances"] = 200, []
    said = pdctl("up", "-c", fleet.config)
    assert said.code == Exit.FAILED
    assert "no weights here" in said.err
    assert "pdctl: p0 ended with exit code 1 while starting\nhint: " in said.err
    run = run_of("fake")
    assert run is not None
    assert not run.alive


def test_a_daemon_that_calls_the_file_bad_is_exit_8(
    starts: Callable[..., Fleet], pdctl: Pdctl
) -> None:
    fleet = starts(lb="import sys; sys.exit(78)")
    fleet.lb.routes["/health"] = 503, {}
    assert pdctl("up", "-c", fleet.config).code == Exit.BAD_CONFIG


def test_who_does_not_serve_in_time_is_named_with_the_reason(
    starts: Callable[..., Fleet], pdctl: Pdctl
) -> None:
    fleet = starts()
    fleet.bootstrap.routes["/instances"] = 200, fleet.instances(d0="starting")
    said = pdctl("up", "-c", fleet.config, "--timeout", "1")
    assert said.code == Exit.TIMEOUT
    assert "pdctl: d0 does not serve after 1 s: starting" in said.err
    assert "--- the last lines of" in said.err


def test_a_daemon_that_dies_later_is_reported_and_started_again(
    starts: Callable[..., Fleet],
    pdctl: Pdctl,
    then: Callable[..., None],
    serves: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = starts()
    said_so = threading.Event()
    report = up._report_changes

    def tell(*arguments: object) -> None:
        report(*arguments)  # type: ignore[arg-type]
        run = run_of("fake")
        if run is not None and any(child.restarts for child in run.children):
            said_so.set()

    monkeypatch.setattr(up, "_report_changes", tell)

    def kill_and_stop() -> None:
        assert serves.wait(30)  # a death before it would be a failed start
        run = run_of("fake")
        assert run is not None
        (d0,) = [child for child in run.children if child.instance == "d0"]
        d0.process.send(signal.SIGKILL)
        assert said_so.wait(30)
        os.kill(os.getpid(), signal.SIGTERM)

    then(kill_and_stop)
    said = pdctl("up", "-c", fleet.config)
    assert "d0 ended with signal 9, will be started again" in said.err
    assert "d0 started again, try 1" in said.err


def test_a_taken_port_is_a_conflict_that_names_it(
    fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemons.cluster.models.model_directory", lambda _: Path())
    said = pdctl("up", "-c", fleet.config)
    assert said.code == Exit.CONFLICT
    assert f"127.0.0.1:{fleet.bootstrap.port}, where bootstrap listens, is taken" in said.err


def test_a_missing_model_is_told_before_anything_is_started(fleet: Fleet, pdctl: Pdctl) -> None:
    fleet.config.write_text(fleet.config.read_text() + "model: nowhere\n")
    said = pdctl("up", "-c", fleet.config)
    assert said.code == Exit.BAD_CONFIG
    assert "no model nowhere" in said.err
    assert run_of("fake") is None


def test_installed_units_start_the_daemons(
    fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch, systemctl: FakeSystemctl
) -> None:
    monkeypatch.setattr("pdctl.units.installed", lambda: True)
    monkeypatch.setattr("pdctl.installation.wanted.CONFIG", fleet.config)
    said = pdctl("up", "-c", fleet.config)
    assert (said.code, "lb is up" in said.err) == (Exit.OK, True)
    (started,) = [call for call in systemctl.calls() if "start" in call]
    assert started[:3] == ["start", "--no-block", "pd.target"]
    assert {"pd-lb.socket", "pd-prefill@p0.service", "pd-decode@d0.service"} <= set(started)


def test_a_unit_that_fails_while_starting_is_told_at_once(
    fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch, systemctl: FakeSystemctl
) -> None:
    monkeypatch.setattr("pdctl.units.installed", lambda: True)
    monkeypatch.setattr("pdctl.installation.wanted.CONFIG", fleet.config)
    systemctl.says("ActiveState=failed\nResult=exit-code\nExecMainStatus=78\nNRestarts=0")
    said = pdctl("up", "-c", fleet.config)
    assert said.code == Exit.BAD_CONFIG
    assert "exit code 78" in said.err


def test_units_do_not_run_another_file_than_the_installed_one(
    fleet: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pdctl.units.installed", lambda: True)
    other = tmp_path / "installed.yaml"
    other.write_text("name: other\n")
    monkeypatch.setattr("pdctl.installation.wanted.CONFIG", other)
    said = pdctl("up", "-c", fleet.config)
    assert (said.code, "pdctl install" in said.err) == (Exit.CONFLICT, True)


def test_a_host_without_daemons_is_a_conflict(tmp_path: Path, pdctl: Pdctl) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: c\nhosts: {a: {}, b: {}}\nbootstrap: {host: a}\nlb: {host: a}\n")
    assert pdctl("up", "-c", path, "--host", "b").code == Exit.CONFLICT


def test_a_machine_is_one_host_of_a_cluster_at_a_time(tmp_path: Path, pdctl: Pdctl) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "name: c\nhosts: {a: {}, b: {}}\nbootstrap: {host: a}\nlb: {host: a}\n"
        "prefill: {p0: {host: b}}\n"
    )
    own = process_of(os.getpid())
    assert own is not None
    run = Run(
        cluster="c",
        config=str(path),
        config_hash=load(path).hash,
        host="a",
        supervisor_pid=own.pid,
        supervisor_started=own.started,
        began_s=time.time(),
        children=[],
    )
    write_run(make_run_directory("c"), run)
    assert "already up" in pdctl("up", "-c", path, "--host", "a").err
    said = pdctl("up", "-c", path, "--host", "b")
    assert said.code == Exit.CONFLICT
    assert "is up here as host a" in said.err


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster file of the phone book and the balancer alone: real daemons that start fast."""
    path = tmp_path / "c.yaml"
    path.write_text(
        f"name: real\nbootstrap: {{port: {free_port()}}}\nlb: {{port: {free_port()}}}\n"
    )
    monkeypatch.setattr("daemons.cluster.models.model_directory", lambda _: Path())
    return path


@pytest.mark.live
def test_detached_daemons_stay_up_until_down(real: Path, pdctl: Pdctl) -> None:
    try:
        said = pdctl("up", "-c", real, "--detach", "--timeout", "60")
        assert said.code == Exit.OK, said.err
        run = run_of("real")
        assert run is not None
        assert [child.instance for child in run.alive] == ["bootstrap", "lb"]
        assert run.supervisor.is_alive
        assert run.supervisor_pid != os.getpid()
        assert "already up" in pdctl("up", "-c", real, "--detach").err
        real.write_text(real.read_text() + "model: other\n")
        assert pdctl("up", "-c", real, "--detach").code == Exit.CONFLICT
    finally:
        said = pdctl("down", "-c", real, "--yes")
    assert said.code == Exit.OK, said.err
    run = run_of("real")
    assert run is not None
    assert not run.is_up
    assert "daemon.ready" in log_path("real", "lb").read_text()
    assert pdctl("down", "-c", real, "--yes").err == "cluster real is not up here\n"


@pytest.mark.live
def test_a_detached_start_that_fails_leaves_nothing_behind(real: Path, pdctl: Pdctl) -> None:
    port = load(real).cluster.lb["port"]
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        real.write_text(real.read_text().replace("lb: {", "lb: {bind: 0.0.0.0, "))
        said = pdctl("up", "-c", real, "--detach", "--timeout", "60")
    assert said.code in (Exit.CONFLICT, Exit.FAILED), said.err
    run = run_of("real")
    assert run is None or not run.is_up
