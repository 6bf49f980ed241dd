"""Checks of a host never raise and always say what to do."""

from __future__ import annotations

import resource
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from daemons.cluster.key import make_key
from pdctl import checks
from pdctl.finding import Check, Status
from tests.support.fake_fleet import Fleet


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the native library out: it takes a second."""
    monkeypatch.setattr(checks, "check_mooncake", lambda: Check("mooncake", Status.OK, "-"))


def by_name(config: Path | None) -> dict[str, Check]:
    return {check.name: check for check in checks.checks(config, None)}


@pytest.mark.usefixtures("quick")
def test_every_check_of_a_host_has_a_name_of_its_own(fleet: Fleet) -> None:
    found = list(checks.checks(fleet.config, None))
    assert len({check.name for check in found}) == len(found)
    assert {"python", "mooncake", "nofile", "memlock", "config", "model", "threads"} <= {
        check.name for check in found
    }


@pytest.mark.usefixtures("quick")
def test_what_fails_or_warns_has_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: c\nmodel: /no/such/model\nprefill: {p0: {engine: {threads: 4096}}}\n")
    bad = [check for check in checks.checks(path, None) if check.status is not Status.OK]
    assert {"model", "threads"} <= {check.name for check in bad}
    assert [check.name for check in bad if not check.hint] == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("threads", "status"), [(0, Status.OK), (4, Status.WARN)])
def test_workers_that_share_the_cores_do_not_ask_for_too_many(
    threads: int, status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks.os, "sched_getaffinity", lambda _: set(range(4)))
    path = tmp_path / "c.yaml"
    engine = f"{{engine: {{threads: {threads}}}}}"
    path.write_text(f"name: c\nprefill: {{p0: {engine}}}\ndecode: {{d0: {engine}}}\n")
    check = by_name(path)["threads"]
    asked = 2 * threads or 4
    assert (check.status, check.value) == (status, f"{asked} threads of 2 workers on 4 cores")


@pytest.mark.usefixtures("quick")
def test_cores_that_end_before_they_begin_are_told(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text('name: c\nprefill: {p0: {engine: {cores: "3-1"}}}\n')
    assert by_name(path)["threads"].value == "engine.cores: 3-1 ends before it begins"


@pytest.mark.usefixtures("quick")
def test_a_bad_cluster_file_fails_and_ends_what_depends_on_it(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("bogus: 1\n")
    found = by_name(path)
    assert found["config"].status is Status.FAIL
    assert "model" not in found


@pytest.mark.usefixtures("quick")
def test_a_port_that_our_daemon_answers_on_is_well(fleet: Fleet) -> None:
    assert by_name(fleet.config)["port-lb"].status is Status.OK


@pytest.mark.usefixtures("quick")
def test_a_port_that_a_stranger_holds_fails(fleet: Fleet) -> None:
    fleet.lb.routes.pop("/health")
    assert by_name(fleet.config)["port-lb"].status is Status.FAIL


@pytest.mark.usefixtures("quick")
def test_a_free_port_is_well(fleet: Fleet) -> None:
    fleet.lb.stop()
    assert by_name(fleet.config)["port-lb"].value.endswith("is free")


def test_the_supported_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    version = namedtuple("version", "major minor micro")
    for minor, status in ((10, Status.FAIL), (11, Status.OK), (13, Status.OK), (14, Status.FAIL)):
        monkeypatch.setattr(checks.sys, "version_info", version(3, minor, 0))
        assert checks.check_python().status is status


@pytest.mark.parametrize(
    ("stderr", "hint"),
    [
        ("ImportError: libibverbs.so.1: cannot open shared object file", "libibverbs1"),
        ("ModuleNotFoundError: No module named 'mooncake'", "pip install"),
        ("", "pip install"),
    ],
)
def test_a_transfer_engine_that_does_not_load_says_why(
    stderr: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], 1, "", stderr)
    monkeypatch.setattr(checks.subprocess, "run", lambda *_, **__: done)
    check = checks.check_mooncake()
    assert check.status is Status.FAIL
    assert hint in check.hint
    assert check.value


def test_a_transfer_engine_that_hangs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(checks.subprocess, "run", hangs)
    assert checks.check_mooncake().status is Status.FAIL


@pytest.mark.parametrize(
    ("limit", "rdma", "status"),
    [
        (resource.RLIM_INFINITY, True, Status.OK),
        (8 << 20, True, Status.FAIL),
        (8 << 20, False, Status.OK),
    ],
)
def test_little_locked_memory_matters_for_rdma_only(
    *, limit: int, rdma: bool, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(checks, "has_rdma", lambda: rdma)
    (memlock,) = [check for check in checks.check_limits() if check.name == "memlock"]
    assert memlock.status is status


def test_few_descriptors_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (1024, 4096))
    (nofile,) = [check for check in checks.check_limits() if check.name == "nofile"]
    assert (nofile.status, nofile.value) == (Status.WARN, "1024")
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (-1, -1))
    (nofile,) = [check for check in checks.check_limits() if check.name == "nofile"]
    assert (nofile.status, nofile.value) == (Status.OK, "unlimited")


def test_a_full_disk_is_a_warning_and_a_missing_folder_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: usage(1, 1, 5 << 20))
    check = checks.check_disk(tmp_path / "not" / "there")
    assert check.status is Status.WARN
    assert check.value == f"5.0 MiB free in {tmp_path}"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("more", "status", "value"),
    [
        ("", Status.OK, "loopback only"),
        ("lb: {bind: 0.0.0.0}\n", Status.WARN, "0.0.0.0"),
        ("lb: {bind: 0.0.0.0}\nkey_file: key\n", Status.OK, "set, hash"),
        ("key_file: none\n", Status.FAIL, "no key in"),
    ],
)
def test_a_missing_key_is_a_warning_where_others_reach_the_daemons(
    tmp_path: Path, more: str, status: Status, value: str
) -> None:
    key = make_key(tmp_path / "key")
    path = tmp_path / "c.yaml"
    path.write_text(f"name: c\nprefill: {{p0: {{}}}}\n{more}")
    found = by_name(path)
    check = found["config" if status is Status.FAIL else "key"]
    assert check.status is status
    assert value in check.value
    assert check.hint or status is Status.OK
    assert key.secret.decode() not in str(found)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("more", "status"),
    [("", Status.WARN), ("transfer: {backend: loopback}\n", Status.OK)],
)
def test_ports_that_no_key_protects_are_told(tmp_path: Path, more: str, status: Status) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"name: c\nprefill: {{p0: {{}}}}\n{more}")
    check = by_name(path)["transfer-ports"]
    assert check.status is status
    assert ("15000-17000" in check.value) == (status is Status.WARN)
