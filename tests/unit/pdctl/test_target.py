"""Which cluster, and which host of it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from daemons.cluster.model import Cluster, Host
from pdctl.errors import CommandError, Exit
from pdctl.processes import process_of
from pdctl.runs import Run, make_run_directory, write_run
from pdctl.share import example_config
from pdctl.target import find, this_host

NOWHERE = Path("nowhere.yaml")


def up(name: str, config: Path) -> None:
    own = process_of(os.getpid())
    assert own is not None
    run = Run(
        cluster=name,
        config=str(config),
        config_hash="",
        host="local",
        supervisor_pid=own.pid,
        supervisor_started=own.started,
        began_s=0,
        children=[],
    )
    write_run(make_run_directory(name), run)


def a_file(folder: Path, name: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\n")
    return path


def test_the_flag_wins(tmp_path: Path) -> None:
    found = find(a_file(tmp_path, "flag"), system_file=a_file(tmp_path, "system"))
    assert (found.cluster.name, found.origin) == ("flag", "--config")


def test_then_the_systems_file(tmp_path: Path) -> None:
    up("running", a_file(tmp_path, "running"))
    assert find(None, system_file=a_file(tmp_path, "system")).cluster.name == "system"


def test_then_the_cluster_that_is_up_here(tmp_path: Path) -> None:
    up("running", a_file(tmp_path, "running"))
    assert find(None, system_file=NOWHERE).cluster.name == "running"


def test_then_the_packaged_example() -> None:
    assert find(None, system_file=NOWHERE).file.path == example_config()


def test_two_clusters_that_are_up_must_be_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        up(name, a_file(tmp_path, name))
    with pytest.raises(CommandError, match="a, b") as caught:
        find(None, system_file=NOWHERE)
    assert caught.value.code is Exit.USAGE


def cluster(**hosts: str) -> Cluster:
    return Cluster(name="c", hosts={name: Host(address) for name, address in hosts.items()})


def test_the_only_host_is_this_one() -> None:
    assert this_host(cluster(anything="203.0.113.1"), None) == "anything"


def test_a_named_host_must_be_in_the_file() -> None:
    assert this_host(cluster(a="203.0.113.1", b="203.0.113.2"), "b") == "b"
    with pytest.raises(CommandError) as caught:
        this_host(cluster(a="203.0.113.1"), "z")
    assert caught.value.code is Exit.NOT_FOUND


def test_the_hosts_name_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "n2.example")
    assert this_host(cluster(n1="203.0.113.1", n2="203.0.113.2"), None) == "n2"


def test_then_the_address_that_is_ours() -> None:
    assert this_host(cluster(x1="203.0.113.1", x2="127.0.0.1"), None) == "x2"


def test_what_cannot_be_told_is_asked_for() -> None:
    with pytest.raises(CommandError, match="cannot tell") as caught:
        this_host(cluster(x1="203.0.113.1", x2="203.0.113.2"), None)
    assert caught.value.hint == "--host names it"
