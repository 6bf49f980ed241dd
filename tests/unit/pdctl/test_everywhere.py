"""Units of every host, by fake systemctl and ssh."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from daemons.cluster.load import ClusterFile, load
from pdctl import everywhere, starting
from pdctl.errors import CommandError, Exit
from pdctl.readiness import Waiting
from tests.support.fake_ssh import make_ssh
from tests.support.fake_systemctl import FakeSystemctl

FILE = """
name: many
hosts: {{n1: {{address: 203.0.113.1}}, n2: {{address: 203.0.113.2}}, n3: {{address: {third}}}}}
bootstrap: {{host: {book}}}
lb: {{host: n1}}
prefill: {{p0: {{host: n2}}}}
decode: {{d0: {{host: n3}}}}
"""


@pytest.fixture
def ssh(systemctl: FakeSystemctl) -> Path:
    return make_ssh(systemctl.folder)


def many(tmp_path: Path, third: str = "203.0.113.3", book: str = "n1") -> ClusterFile:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE.format(third=third, book=book))
    return load(path)


def by_host(systemctl: FakeSystemctl, verb: str) -> dict[str, list[str]]:
    calls = [call for call in systemctl.calls() if verb in call]
    return {call[call.index("--host") + 1]: call[call.index(verb) + 1 :] for call in calls}


@pytest.mark.usefixtures("ssh")
def test_a_start_without_the_phone_books_host_ends_at_once(
    systemctl: FakeSystemctl, tmp_path: Path
) -> None:
    with pytest.raises(CommandError) as caught:
        everywhere.up(many(tmp_path, "203.0.113.9", "n3"), 60.0)
    assert caught.value.code is Exit.UNREACHABLE
    assert by_host(systemctl, "start")["203.0.113.2"] == [
        "--no-block", "pd.target", "pd-prefill@p0.service",
    ]  # fmt: skip


@pytest.mark.usefixtures("ssh")
def test_daemons_are_stopped_role_by_role(systemctl: FakeSystemctl, tmp_path: Path) -> None:
    assert everywhere.down(many(tmp_path), 5.0) == Exit.OK
    stopped = [call[call.index("stop") + 1 :] for call in systemctl.calls() if "stop" in call]
    services = [name for names in stopped for name in names if name.endswith(".service")]
    assert services == [
        "pd-lb.service", "pd-prefill@p0.service", "pd-decode@d0.service", "pd-bootstrap.service",
    ]  # fmt: skip
    assert [name for name in stopped[0] if name.endswith(".socket")]


@pytest.mark.usefixtures("ssh")
def test_a_dead_host_is_asked_once_and_the_others_are_stopped(
    systemctl: FakeSystemctl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert everywhere.down(many(tmp_path, "203.0.113.9"), 5.0) == Exit.UNREACHABLE
    assert set(by_host(systemctl, "stop")) == {"203.0.113.1", "203.0.113.2"}
    assert capsys.readouterr().err.count("n3 is left out") == 1


def test_logs_of_all_hosts_are_told_by_time(
    ssh: Path, systemctl: FakeSystemctl, tmp_path: Path
) -> None:
    systemctl.says('{"timestamp": "2", "event": "b"}\n{"timestamp": "1", "event": "a"}')
    told, code = everywhere.logs(many(tmp_path), None, 4)
    assert code == Exit.OK
    assert [json.loads(line)["timestamp"] for line in told] == ["1", "2", "2", "2"]
    assert "--unit=pd-decode@d0.service" in ssh.read_text()


@pytest.mark.usefixtures("ssh")
def test_logs_of_one_daemon_ask_its_host_only(systemctl: FakeSystemctl, tmp_path: Path) -> None:
    everywhere.logs(many(tmp_path, "203.0.113.9"), "p0", 4)
    assert [call for call in systemctl.calls() if "--unit=pd-prefill@p0.service" in call]
    with pytest.raises(CommandError) as caught:
        everywhere.logs(many(tmp_path), "p9", 4)
    assert caught.value.code is Exit.NOT_FOUND


@pytest.mark.usefixtures("ssh")
def test_a_host_that_is_lost_while_it_starts_is_told_and_the_others_are_waited_for(
    systemctl: FakeSystemctl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []

    def failure(unit: str, *, host: str | None) -> str | None:
        asked.append(unit)
        if host == "203.0.113.3":
            raise CommandError(f"systemctl show {unit}: Connection refused", "see ssh")
        return None

    def waiting(_: object, names: Sequence[str]) -> Waiting:
        is_late = "d0" in names or "p0" not in names or len(asked) < 6
        return Waiting({name: "loading" for name in names if is_late})

    monkeypatch.setattr(everywhere.units, "failure", failure)
    monkeypatch.setattr(everywhere, "UNITS_S", 0.0)
    monkeypatch.setattr(everywhere, "LOOK_S", 0.0)
    monkeypatch.setattr(starting, "waiting", waiting)
    assert everywhere.up(many(tmp_path), 60.0) == Exit.UNREACHABLE
    assert asked.count("pd-decode@d0.service") == 1
    told = capsys.readouterr().err
    assert told.count("n3 is left out") == 1
    assert "p0 is up" in told
    assert "d0 is up" not in told


@pytest.mark.usefixtures("ssh", "systemctl")
def test_without_the_phone_books_host_nobody_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failure(unit: str, *, host: str | None) -> str | None:
        raise CommandError(f"systemctl show {unit} on {host}: Connection refused", "see ssh")

    monkeypatch.setattr(everywhere.units, "failure", failure)
    monkeypatch.setattr(everywhere, "UNITS_S", 0.0)
    monkeypatch.setattr(everywhere, "LOOK_S", 0.0)
    with pytest.raises(CommandError, match="refused") as caught:
        everywhere.up(many(tmp_path), 60.0)
    assert "pd-bootstrap.service on 203.0.113.1" in caught.value.what
