"""Doing something on every host."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemons.cluster.load import load
from pdctl.errors import CommandError, Exit
from pdctl.hosts import Host, daemons_on, done_on, hosts_of, on_each, verdict
from tests.support.fake_ssh import make_ssh

FILE = """
name: many
hosts: {n1: {address: 127.0.0.1}, n2: {address: 203.0.113.2}, n3: {address: 203.0.113.9},
  idle: {address: 203.0.113.4}}
bootstrap: {host: n1}
lb: {host: n1}
prefill: {p0: {host: n2}}
decode: {d0: {host: n3}}
"""
N2, DEAD = Host("n2", "203.0.113.2"), Host("n3", "203.0.113.9")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    log = make_ssh(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return log


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    return path


def test_hosts_without_daemons_are_left_alone_and_ours_needs_no_ssh(file: Path) -> None:
    assert hosts_of(load(file).cluster) == [Host("n1", None), N2, DEAD]


def test_words_come_there_as_they_are(asked: Path) -> None:
    assert N2.run(["printf", "%s", "a b; $HOME"]) == "a b; $HOME"
    assert N2.run(["cat"], said="text") == "text"
    assert asked.read_text().startswith("203.0.113.2 printf %s 'a b; $HOME'\n")


@pytest.mark.usefixtures("asked")
def test_a_dead_host_is_told_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    here = Host("n1", None)
    results = on_each([here, N2, DEAD], lambda host: host.run(["echo", host.name]))
    assert (results["n1"], results["n2"]) == ("n1\n", "n2\n")
    assert done_on(results) == ["n1", "n2"]
    assert verdict(results) == Exit.UNREACHABLE
    assert "n3 is left out: ssh: connect to host" in capsys.readouterr().err


@pytest.mark.usefixtures("asked")
def test_a_command_that_fails_is_no_lost_host() -> None:
    with pytest.raises(CommandError) as caught:
        N2.run(["sh", "-c", "echo broken >&2; exit 3"])
    assert (caught.value.what, caught.value.code) == ("n2: broken", Exit.FAILED)


@pytest.mark.usefixtures("asked")
def test_one_that_hangs_is_unreachable() -> None:
    with pytest.raises(CommandError) as caught:
        N2.run(["sleep", "5"], within_s=0.2)
    assert caught.value.code is Exit.UNREACHABLE


def test_nothing_wrong_is_exit_0() -> None:
    assert (verdict({"n1": None}), on_each([], Host.reach)) == (Exit.OK, {})


def test_daemons_are_found_by_their_host(file: Path) -> None:
    assert [place.instance for place in daemons_on(load(file), ["n1", "n3"])] == [
        "bootstrap", "d0", "lb",
    ]  # fmt: skip
