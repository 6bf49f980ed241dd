"""One file on every host."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.errors import Exit
from tests.support.fake_fleet import Said
from tests.support.fake_ssh import make_ssh
from tests.support.fake_systemctl import FakeSystemctl

Pdctl = Callable[..., Said]
FILE = """name: many
hosts: {{n1: {{address: 203.0.113.1}}, n2: {{address: {second}}}}}
bootstrap: {{host: n1}}
lb: {{host: n1}}
prefill: {{p0: {{host: n2}}}}
"""


@pytest.fixture
def to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_ssh(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return tmp_path / "etc/pd/cluster.yaml"


def written(tmp_path: Path, second: str = "203.0.113.2") -> Path:
    path = tmp_path / "new.yaml"
    path.write_text(FILE.format(second=second))
    return path


def test_a_host_without_the_file_gets_it(to: Path, tmp_path: Path, pdctl: Pdctl) -> None:
    path = written(tmp_path)
    said = pdctl("config", "push", "-c", path, "--to", to, "--yes")
    assert said.code == Exit.OK, said.err
    assert to.read_text() == path.read_text()
    assert [entry.name for entry in to.parent.iterdir()] == ["cluster.yaml"]
    assert pdctl("config", "push", "-c", path, "--to", to, "--yes").err == (
        "  the same already: n1, n2\n"
    )


def test_what_changes_is_shown_and_the_mode_stays(to: Path, tmp_path: Path, pdctl: Pdctl) -> None:
    to.parent.mkdir(parents=True)
    to.write_text("name: old\n")
    to.chmod(0o640)
    path = written(tmp_path)
    said = pdctl("config", "push", "-c", path, "--to", to, "--dry-run")
    assert (said.code, to.read_text()) == (Exit.OK, "name: old\n")
    assert "-name: old\n" in said.out
    assert "+name: many\n" in said.out
    assert pdctl("config", "push", "-c", path, "--to", to, "--yes").code == Exit.OK
    assert os.stat(to).st_mode & 0o777 == 0o640


def test_without_a_terminal_or_yes_nothing_is_written(
    to: Path, tmp_path: Path, pdctl: Pdctl
) -> None:
    assert pdctl("config", "push", "-c", written(tmp_path), "--to", to).code == Exit.USAGE
    assert not to.exists()


def test_a_bad_file_goes_nowhere(to: Path, tmp_path: Path, pdctl: Pdctl) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: many\nlb: {nonsense: 1}\n")
    assert pdctl("config", "push", "-c", path, "--to", to, "--yes").code == Exit.BAD_CONFIG
    assert not to.exists()


def test_a_dead_host_is_told_and_the_others_get_it(to: Path, tmp_path: Path, pdctl: Pdctl) -> None:
    path = written(tmp_path, "203.0.113.9")
    said = pdctl("config", "push", "-c", path, "--to", to, "--yes")
    assert said.code == Exit.UNREACHABLE
    assert "n2 is left out" in said.err
    assert to.read_text() == path.read_text()


def test_what_needs_a_restart_is_told_apart_from_what_was_read_again(
    to: Path, tmp_path: Path, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeSystemctl.made(tmp_path / "systemd")
    monkeypatch.setenv("PATH", str(tmp_path / "systemd"), prepend=":")
    path = written(tmp_path)
    words = ("config", "push", "-c", path, "--to", to, "--yes")
    assert "daemons run on the old one until: pdctl restart --rolling" in pdctl(*words).err
    to.unlink()
    told = pdctl(*words, "--reload").err
    assert "lb has read it" in told
    assert "the old one" not in told
    assert "what cannot change meanwhile waits for: pdctl restart --rolling" in told


def test_a_host_that_did_not_take_the_file_is_not_told_to_read_it(
    tmp_path: Path, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl = FakeSystemctl.made(tmp_path / "bin")
    make_ssh(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "etc").write_text("no folder")
    to = tmp_path / "etc" / "cluster.yaml"
    said = pdctl("config", "push", "-c", written(tmp_path), "--to", to, "--yes", "--reload")
    assert said.code == Exit.FAILED
    assert systemctl.calls() == []
    assert "pdctl restart" not in said.err
