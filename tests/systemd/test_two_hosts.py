"""A cluster over two hosts, each with its own systemd, joined by a cable that can be pulled."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.systemd.conftest import Boot
from tests.systemd.installed import Installed, installed
from tests.systemd.machine import Cable, cable, until
from tests.systemd.ssh import joined
from tests.systemd.ssh import why_not as why_no_ssh

pytestmark = pytest.mark.timeout(900)  # with the machines, which the first test waits for
CLUSTER = {
    "name": "two",
    "model": "/srv/model",
    "key_file": "cluster.key",
    "hosts": {"n1": {"address": "10.77.0.1"}, "n2": {"address": "10.77.0.2"}},
    "engine": {"threads": 1, "kv_tokens": 2048, "page_size": 16, "dtype": "fp32"},
    "bootstrap": {"host": "n1"},
    "lb": {"host": "n1", "poll_s": 0.2},
    "timers": {
        "drain_s": 20,
        "notice_s": 0.5,
        "heartbeat_s": 0.5,
        "lease_s": 3,
        "destination_s": 10,
    },
    "prefill": {"p0": {"host": "n1"}},
    "decode": {"d0": {"host": "n2"}},
}
LB = "http://10.77.0.1:8000"
SHORT_PULL_S = 3.0
LONG_PULL_S = 60.0


@dataclass(frozen=True, slots=True)
class TwoHosts:
    """Both machines and what joins them."""

    n1: Installed
    n2: Installed
    wire: Cable

    def serves(self) -> bool:
        """Say whether a request over both hosts is answered."""
        return self.n1.ask(LB)[0] == 200

    def main_pids(self) -> tuple[int, int]:
        """Return the processes of both workers."""
        return self.n1.main_pid("pd-prefill@p0.service"), self.n2.main_pid("pd-decode@d0.service")


@contextlib.contextmanager
def asked_again_and_again(host: Installed) -> Iterator[list[tuple[int, Any]]]:
    """Let two clients ask without a pause meanwhile; what they were answered grows."""
    enough = threading.Event()
    answers: list[tuple[int, Any]] = []

    def ask() -> None:
        while not enough.is_set():
            answers.append(host.ask(LB))

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    try:
        yield answers
    finally:
        enough.set()
        for thread in asking:
            thread.join(60)


def status_of(host: Installed) -> Any:
    """Return what pdctl status says there."""
    return json.loads(host.pdctl("status", "-o", "json", check=False).stdout)


@pytest.fixture(scope="module")
def two(boot: Boot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    folder = tmp_path_factory.mktemp("two")
    with (
        boot(folder / "n1", "n1") as m1,
        boot(folder / "n2", "n2") as m2,
        cable(m1, m2, ("10.77.0.1/24", "10.77.0.2/24")) as wire,
    ):
        text = yaml.safe_dump(CLUSTER)
        n1 = installed(m1, text)
        n2 = installed(m2, text, key=m1.path("/etc/cluster.key").read_text())
        n1.pdctl("up", within_s=120)
        n2.pdctl("up", within_s=120)
        hosts = TwoHosts(n1, n2, wire)
        assert until(hosts.serves, 20.0)
        yield hosts


def test_tokens_come_over_both_hosts(two: TwoHosts) -> None:
    status, answer = two.n1.ask(LB)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
    assert two.n1.machine.show("pd-decode@d0.service", "ActiveState") == "inactive"
    for host in (two.n1, two.n2):
        named = host.pdctl("status", "-o", "name").stdout.split()
        assert named == ["bootstrap", "p0", "d0", "lb"]
    wires = {row["name"]: row for row in status_of(two.n1)["daemons"]}["p0"]["wires"]
    why = "(not cma: it runs in another PID namespace of this host)"  # the machines are containers
    assert [wire["transport"] for wire in wires.values()] == [f"tcp {why}"]


def test_a_cable_that_is_out_for_a_moment_ends_nobody_and_heals(two: TwoHosts) -> None:
    pids = two.main_pids()
    answers: list[tuple[int, Any]] = []
    two.wire.pull()
    asking = threading.Thread(target=lambda: answers.append(two.n1.ask(LB)))
    asking.start()
    time.sleep(SHORT_PULL_S)  # the fault itself
    two.wire.plug()
    asking.join(60)
    ((status, answer),) = answers
    assert status in (200, 502, 503, 504), answer
    if status != 200:
        assert answer["error"]["cause"]
    assert until(two.serves, 30.0)
    assert two.main_pids() == pids


def test_a_cable_that_is_out_for_a_minute_is_told_and_heals(two: TwoHosts) -> None:
    pids = two.main_pids()
    two.wire.pull()
    began = time.monotonic()
    status, answer = two.n1.ask(LB)
    assert status in (502, 503, 504), answer
    assert answer["error"]["cause"]
    time.sleep(max(0.0, LONG_PULL_S - (time.monotonic() - began)))  # the fault itself
    two.wire.plug()
    assert until(two.serves, 60.0)
    assert two.main_pids() == pids


@pytest.fixture(scope="module")
def joined_by_ssh(two: TwoHosts) -> TwoHosts:
    """Root of n1 may come to n2, and only that way."""
    if why_no_ssh():
        pytest.skip(why_no_ssh())
    joined(two.n1.machine, two.n2.machine, "10.77.0.2")
    return two


def test_one_command_stops_and_starts_every_host(joined_by_ssh: TwoHosts) -> None:
    n1, n2 = joined_by_ssh.n1, joined_by_ssh.n2
    done = n1.pdctl("down", "--all-hosts", "--yes")
    assert "d0 of n2 down" in done.stderr
    states = [host.machine.show("pd.target", "ActiveState") for host in (n1, n2)]
    assert n2.machine.show("pd-decode@d0.service", "ActiveState") == "inactive", states
    done = n1.pdctl("up", "--all-hosts", within_s=120)
    assert "d0 is up after" in done.stderr
    assert until(joined_by_ssh.serves, 20.0)


def test_a_file_is_pushed_to_every_host_and_drift_is_told(joined_by_ssh: TwoHosts) -> None:
    n1, n2 = joined_by_ssh.n1, joined_by_ssh.n2
    text = n1.machine.path("/etc/pd/cluster.yaml").read_text()
    n1.machine.write("/tmp/new.yaml", f"# another one\n{text}")
    n1.machine.write("/tmp/cluster.key", n1.machine.path("/etc/cluster.key").read_text())
    n1.machine.run("chmod", "600", "/tmp/cluster.key")
    done = n1.pdctl("config", "push", "--config", "/tmp/new.yaml", "--yes")
    assert "+# another one" in done.stdout
    for host in (n1, n2):
        pushed = host.machine.path("/etc/pd/cluster.yaml").read_text()
        assert pushed.startswith("# another one\n")
    assert "another cluster file than ours" in n1.pdctl("status", check=False).stdout
    n1.pdctl("restart", "p0", "d0", "--force", "--yes", within_s=120)  # d0 by systemctl --host
    told = n1.pdctl("status", check=False).stdout
    assert "p0 on" not in told.splitlines()[0]
    assert "d0 on" not in told.splitlines()[0]
    assert until(joined_by_ssh.serves, 20.0)


def test_a_dead_host_is_told_and_the_others_logs_are_shown(joined_by_ssh: TwoHosts) -> None:
    n1 = joined_by_ssh.n1
    assert "d0" in n1.pdctl("logs", "--all-hosts", "-n", "200").stdout
    joined_by_ssh.wire.pull()
    try:
        done = n1.pdctl("logs", "--all-hosts", "-n", "20", check=False)
    finally:
        joined_by_ssh.wire.plug()
    assert done.returncode == 5
    assert "n2 is left out" in done.stderr
    assert done.stdout


def test_doctor_stands_before_a_start_and_writes_over_the_wire(two: TwoHosts) -> None:
    before = "ExecStartPre=/opt/pd/bin/pdctl doctor --host-only"
    two.n1.machine.run("systemd-run", "--wait", "--quiet", "-p", before, "/bin/true")
    assert until(two.serves, 30.0)
    done = two.n1.pdctl("check", "pair-p0-d0")
    assert "verified" in done.stdout
    for name in ("inbox-d0", "reach-d0", "clock-d0"):
        assert " ok " in two.n1.pdctl("check", name).stdout


def test_workers_are_added_and_all_replaced_under_load_without_a_lost_request(
    joined_by_ssh: TwoHosts,
) -> None:
    n1, n2 = joined_by_ssh.n1, joined_by_ssh.n2
    more = {
        **CLUSTER,
        "prefill": {"p0": {"host": "n1"}, "p1": {"host": "n1"}},
        "decode": {"d0": {"host": "n2"}, "d1": {"host": "n2"}},
    }
    n1.machine.write("/tmp/more.yaml", yaml.safe_dump(more))
    n1.machine.write("/tmp/cluster.key", n1.machine.path("/etc/cluster.key").read_text())
    n1.machine.run("chmod", "600", "/tmp/cluster.key")
    n1.pdctl("config", "push", "--config", "/tmp/more.yaml", "--yes")
    for host in (n1, n2):
        host.pdctl("install", "--yes")
    n1.pdctl("up", "--all-hosts", within_s=120)
    n1.pdctl("await", "--ready", "P=2,D=2", "--timeout", "60")
    with asked_again_and_again(n1) as answers:
        done = n1.pdctl("restart", "--rolling", "--yes", within_s=240)
    assert done.stderr.count(" restarted in ") == 4
    assert [answer for answer in answers if answer[0] != 200] == []
    assert len(answers) > 4


def test_a_worker_of_another_host_is_drained_under_load_without_a_lost_request(
    joined_by_ssh: TwoHosts,
) -> None:
    n1 = joined_by_ssh.n1
    with asked_again_and_again(n1) as answers:
        n1.pdctl("drain", "d1", "--yes", "--deadline", "30")
        states = {row["name"]: row["state"] for row in status_of(n1)["daemons"]}
        assert states["d1"] in ("draining", "drained")
        n1.pdctl("undrain", "d1")
    assert [answer for answer in answers if answer[0] != 200] == []
    assert len(answers) > 2
