"""One file for somebody far away."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from daemons.cluster.key import load_key
from daemons.cluster.load import load
from daemons.protocol.topology import Role
from pdctl import checks
from pdctl.errors import Exit
from pdctl.finding import Check, Status
from pdctl.runs import Child, Run, log_path, make_run_directory, write_run
from tests.support.fake_fleet import Fleet, Said

Pdctl = Callable[..., Said]
PLANTED = "planted-secret-that-must-never-leave-this-host-0123"


@pytest.fixture
def keyed(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """A cluster with a key, whose log and comments give it away."""
    monkeypatch.setattr(
        checks, "checks", lambda *_, **__: iter([Check("python", Status.OK, "3.11")])
    )
    key = fleet.config.with_name("cluster.key")
    key.write_text(PLANTED)
    key.chmod(0o600)
    fleet.config.write_text(f"# {PLANTED}\nkey_file: cluster.key\n" + fleet.config.read_text())
    loaded = load_key(load(fleet.config).cluster)
    assert loaded is not None
    make_run_directory("fake")
    child = Child(instance="p0", role="prefill")
    run = Run(
        cluster="fake", config=str(fleet.config), config_hash="x", host="local",
        supervisor_pid=1, supervisor_started=1, began_s=0.0, children=[child],
    )  # fmt: skip
    write_run(log_path("fake", "p0").parents[1], run)
    words = f"{PLANTED} {loaded.token(Role.DECODE)} {loaded.plane.hex()}\nplain line\n"
    log_path("fake", "p0").write_text(words)
    return fleet


def opened(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read().decode()
        return found


def test_a_planted_key_is_nowhere_in_it(keyed: Fleet, pdctl: Pdctl, tmp_path: Path) -> None:
    out = tmp_path / "bundle.tar.gz"
    said = pdctl("support-bundle", "-c", keyed.config, "--out", out)
    assert (said.code, said.out) == (Exit.OK, f"{out}\n"), said.err
    texts = opened(out)
    loaded = load_key(load(keyed.config).cluster)
    assert loaded is not None
    for text in texts.values():
        assert PLANTED not in text
        assert loaded.token(Role.DECODE) not in text
        assert loaded.plane.hex() not in text
    assert "plain line" in texts["logs/p0.log"]
    assert out.stat().st_mode & 0o777 == 0o600


def test_it_holds_the_screens_and_says_what_is_missing(
    keyed: Fleet, pdctl: Pdctl, tmp_path: Path
) -> None:
    out = tmp_path / "bundle.tar.gz"
    keyed.bootstrap.stop()
    for daemon in (keyed.p0, keyed.d0, keyed.lb):
        daemon.stop()
    assert pdctl("support-bundle", "-c", keyed.config, "--out", out).code == Exit.OK
    texts = opened(out)
    assert json.loads(texts["status.json"])["health"]["level"] == "HEALTH_ERR"
    assert "nobody answers" in texts["events.json.missing"]
    assert set(texts) >= {"cluster.yaml", "rooms.json", "checks.json", "versions.txt"}


def test_a_file_that_is_there_is_not_replaced(keyed: Fleet, pdctl: Pdctl, tmp_path: Path) -> None:
    out = tmp_path / "bundle.tar.gz"
    out.write_text("mine")
    assert pdctl("support-bundle", "-c", keyed.config, "--out", out).code == Exit.CONFLICT
    assert out.read_text() == "mine"
