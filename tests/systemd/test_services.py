"""pd's services on one host under real systemd."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.systemd.conftest import Boot
from tests.systemd.installed import Installed, installed
from tests.systemd.machine import until

pytestmark = pytest.mark.timeout(900)  # with the machine, which the first test waits for
UNITS = (
    "pd-bootstrap.service",
    "pd-prefill@p0.service",
    "pd-decode@d0.service",
    "pd-lb.service",
)


def restarts(host: Installed, unit: str) -> int:
    return int(host.machine.show(unit, "NRestarts"))


def rank_pid(host: Installed, unit: str) -> int:
    """Return the rank of a worker: the child of its main process."""
    found = host.machine.run("pgrep", "--parent", str(host.main_pid(unit))).stdout.split()
    return int(found[0])


def serves(host: Installed) -> bool:
    return host.ask()[0] == 200


def test_what_was_installed_serves(host: Installed) -> None:
    assert host.machine.show("pd.target", "ActiveState") == "active"
    status, answer = host.ask()
    assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
    assert "ready, 0 rooms" in host.machine.show("pd-decode@d0.service", "StatusText")


def test_no_daemon_runs_as_root_and_the_key_came_as_a_credential(host: Installed) -> None:
    for unit in UNITS:
        pid = host.main_pid(unit)
        assert host.machine.run("ps", "-o", "user=", "-p", str(pid)).stdout.strip() == "pd"
        environment = host.machine.run("cat", f"/proc/{pid}/environ").stdout
        assert "CREDENTIALS_DIRECTORY=" in environment
    assert host.machine.path("/etc/pd/cluster.key").stat().st_mode & 0o777 == 0o600


def test_pdctl_has_the_same_words_for_units(host: Installed) -> None:
    assert "already up by systemd" in host.pdctl("up").stderr
    assert host.pdctl("status", "-o", "name").stdout.split() == ["bootstrap", "p0", "d0", "lb"]
    assert "front.ready" in host.pdctl("logs", "d0").stdout
    assert host.pdctl("diff", "--config", "/etc/pd/cluster.yaml").stdout == ""


def test_a_reload_takes_a_good_file_and_refuses_a_bad_one(host: Installed) -> None:
    unit = "pd-decode@d0.service"
    good = host.machine.path("/etc/pd/cluster.yaml").read_text()
    pid = host.main_pid(unit)
    host.machine.write("/etc/pd/cluster.yaml", good.replace("drain_s: 20", "drain_s: 21"))
    try:
        host.machine.run("systemctl", "reload", unit)
        assert until(lambda: '"in_force": ["timers.drain_s"]' in host.machine.journal(unit))
        host.machine.write("/etc/pd/cluster.yaml", "name: [")
        assert host.machine.run("systemctl", "reload", unit, check=False).returncode != 0
    finally:
        host.machine.write("/etc/pd/cluster.yaml", good)
    assert host.main_pid(unit) == pid
    assert serves(host)


@pytest.mark.parametrize(("unit", "port"), [("pd-lb", 8000), ("pd-bootstrap", 8998)])
def test_a_restart_of_a_held_port_refuses_nobody(host: Installed, unit: str, port: int) -> None:
    """A connection that comes while its daemon is away waits in the socket unit's backlog."""
    knock = f"curl -s -o /dev/null -w '%{{exitcode}}\\n' http://127.0.0.1:{port}/health"
    loop = f"until [ -e /run/enough ]; do {knock}; done"
    with subprocess.Popen(
        host.machine.argv("bash", "-c", loop), stdout=subprocess.PIPE, text=True
    ) as knocking:
        for _ in range(3):
            host.machine.run("systemctl", "restart", f"{unit}.service")
        host.machine.write("/run/enough", "")
        codes, _ = knocking.communicate(timeout=60)
    host.machine.path("/run/enough").unlink()
    # 7: could not connect. One that was open when its daemon ended may have been reset.
    assert len(codes.split()) > 2
    assert "7" not in codes.split()
    assert until(lambda: serves(host), 15.0)


def test_a_killed_unit_comes_back_and_the_others_do_not_notice(host: Installed) -> None:
    pids = {unit: host.main_pid(unit) for unit in UNITS}
    host.machine.run("systemctl", "kill", "--signal=KILL", "pd-prefill@p0.service")
    assert until(lambda: host.main_pid("pd-prefill@p0.service") not in (0, pids[UNITS[1]]), 30.0)
    assert until(lambda: host.machine.show(UNITS[1], "ActiveState") == "active", 60.0)
    assert until(lambda: serves(host), 30.0)
    others = [unit for unit in UNITS if unit != "pd-prefill@p0.service"]
    assert {unit: host.main_pid(unit) for unit in others} == {unit: pids[unit] for unit in others}


def test_a_wedged_scheduler_is_restarted_by_the_watchdog(host: Installed) -> None:
    unit = "pd-decode@d0.service"
    host.machine.write(f"/etc/systemd/system/{unit}.d/99-test.conf", "[Service]\nWatchdogSec=4\n")
    host.machine.run("systemctl", "daemon-reload")
    host.machine.run("systemctl", "restart", unit, within_s=90)
    before = restarts(host, unit)
    host.machine.run("kill", "-STOP", str(rank_pid(host, unit)))
    assert until(lambda: restarts(host, unit) > before, 60.0)
    assert until(lambda: host.machine.show(unit, "ActiveState") == "active", 60.0)
    assert "Watchdog timeout" in host.machine.journal(unit)
    host.machine.path(f"/etc/systemd/system/{unit}.d/99-test.conf").unlink()
    host.machine.run("systemctl", "daemon-reload")
    assert until(lambda: serves(host), 30.0)


def test_a_stop_is_a_drain(host: Installed) -> None:
    """A text that was begun comes to its end, though its decode was told to stop."""
    unit = "pd-decode@d0.service"
    host.pdctl("chaos", "d0", "engine.delay", "--times", "0", "--seconds", "0.02")
    answers: list[tuple[int, Any]] = []
    asking = threading.Thread(
        target=lambda: answers.append(host.ask(max_tokens=300, ignore_eos=True))
    )
    asking.start()
    assert until(lambda: "running" in host.pdctl("rooms", check=False).stdout, 30.0)
    host.machine.run("systemctl", "stop", unit)
    asking.join(60)
    ((status, answer),) = answers
    assert (status, answer["usage"]["completion_tokens"]) == (200, 300)
    assert host.machine.show(unit, "Result") == "success"
    host.machine.run("systemctl", "start", unit, within_s=90)
    assert until(lambda: serves(host), 30.0)


def test_a_file_that_is_bad_is_not_tried_again(host: Installed) -> None:
    good = host.machine.path("/etc/pd/cluster.yaml").read_text()
    host.machine.write("/etc/pd/cluster.yaml", good.replace("/srv/model", "/srv/nothing"))
    try:
        unit = "pd-prefill@p0.service"
        assert host.machine.run("systemctl", "restart", unit, check=False).returncode != 0
        assert host.machine.show(unit, "ExecMainStatus") == "78"
        assert host.machine.show(unit, "ActiveState") == "failed"
    finally:
        host.machine.write("/etc/pd/cluster.yaml", good)
    host.machine.run("systemctl", "restart", unit, within_s=90)
    assert until(lambda: serves(host), 30.0)


def test_an_uninstallation_leaves_nothing(boot: Boot, tmp_path: Path) -> None:
    with boot(tmp_path, "leaving") as machine:
        clean = machine.run("find", "/etc", "/opt", "/var/lib/pd", "/var/cache", check=False).stdout
        there = installed(machine, "name: leaving\nmodel: /srv/model\n")
        assert machine.run("id", "pd").returncode == 0
        there.pdctl("up")
        assert machine.show("pd-lb.service", "ActiveState") == "active"
        there.pdctl("uninstall", "--purge", "--yes")
        assert machine.show("pd-lb.service", "LoadState") == "not-found"
        assert machine.run("id", "pd", check=False).returncode != 0
        left = machine.run("find", "/etc", "/opt", "/var/lib/pd", "/var/cache", check=False).stdout
        new = set(left.splitlines()) - set(clean.splitlines())
        ours = {path for path in new if "pd" in Path(path).name or "/pd" in path}
        assert ours <= {"/etc/passwd-", "/etc/group-"}
