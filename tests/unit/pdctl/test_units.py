"""Names of units, and the packaged units themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from daemons.protocol.topology import Role
from pdctl import units
from pdctl.errors import CommandError, Exit
from pdctl.share import share_directory
from pdctl.units import installed, instance_of, stopping_order, unit_of
from tests.support.fake_systemctl import FakeSystemctl

PROGRAMS = ("pd-bootstrap", "pd-lb", "pd-prefill", "pd-decode", "pdctl")
SERVICES = ("pd-bootstrap.service", "pd-lb.service", "pd-prefill@.service", "pd-decode@.service")


def test_an_instance_is_the_units_instance() -> None:
    assert unit_of(Role.PREFILL, "p0") == "pd-prefill@p0.service"
    assert unit_of(Role.DECODE, "d1") == "pd-decode@d1.service"
    assert unit_of(Role.LB, "lb") == "pd-lb.service"
    assert unit_of(Role.BOOTSTRAP, "bootstrap") == "pd-bootstrap.service"


def test_a_folder_without_our_target_has_no_units(tmp_path: Path) -> None:
    assert not installed([tmp_path])


def test_there_is_a_unit_for_every_daemon_and_a_target() -> None:
    found = {path.name for path in share_directory("systemd").iterdir()}
    assert {*SERVICES, "pd.target"} <= found


@pytest.mark.parametrize("name", SERVICES)
def test_a_bad_config_is_not_started_again(name: str) -> None:
    text = (share_directory("systemd") / name).read_text()
    for line in (
        "Type=notify",
        "Restart=on-failure",
        "RestartPreventExitStatus=78",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "PartOf=pd.target",
    ):
        assert line in text.splitlines()


@pytest.mark.parametrize("name", ["pd-prefill@.service", "pd-decode@.service"])
def test_workers_may_pin_memory_and_see_devices(name: str) -> None:
    lines = (share_directory("systemd") / name).read_text().splitlines()
    assert "LimitMEMLOCK=infinity" in lines
    assert not [line for line in lines if line.startswith(("PrivateDevices=", "ProtectClock="))]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_finds_nothing_to_say_about_the_units(tmp_path: Path) -> None:
    programs, units = tmp_path / "bin", tmp_path / "units"
    programs.mkdir()
    units.mkdir()
    for program in PROGRAMS:
        (programs / program).write_text("#!/bin/sh\n")
        (programs / program).chmod(0o755)
    for source in share_directory("systemd").iterdir():
        text = source.read_text().replace("/opt/pd/bin", str(programs))
        (units / source.name).write_text(text)
    sockets = ("pd-lb.socket", "pd-bootstrap.socket")
    names = [name.replace("@.", "@x0.") for name in (*SERVICES, *sockets, "pd.target")]
    for name in names:
        done = subprocess.run(
            ["systemd-analyze", "verify", f"./{name}"],
            cwd=units,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), name


def test_a_unit_names_its_instance() -> None:
    for role, name in ((Role.PREFILL, "p0"), (Role.LB, "lb"), (Role.BOOTSTRAP, "bootstrap")):
        assert instance_of(unit_of(role, name)) == name


def test_sockets_are_stopped_first_and_the_phone_book_last() -> None:
    names = ["pd-bootstrap.service", "pd-decode@d0.service", "pd-lb.service", "pd-lb.socket"]
    assert sorted(names, key=stopping_order) == [*names[:1:-1], "pd-decode@d0.service", names[0]]


def test_another_host_is_reached_by_systemctl_itself(systemctl: FakeSystemctl) -> None:
    units.reload("pd-lb.service", host="n2")
    assert systemctl.calls() == [["--host", "n2", "reload", "pd-lb.service"]]


def test_what_systemctl_says_last_is_the_error(systemctl: FakeSystemctl) -> None:
    systemctl.cries("first\nUnit x not found.\n")
    with pytest.raises(CommandError, match="on n2: Unit x not found"):
        units.show("x", "ActiveState", host="n2")


def test_a_systemctl_that_hangs_is_a_timeout(systemctl: FakeSystemctl) -> None:
    (systemctl.folder / "systemctl").write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(CommandError, match="did not end in 0 s") as caught:
        units.stop(["pd-lb.service"], within_s=0.2)
    assert caught.value.code is Exit.TIMEOUT


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("ActiveState=activating\nResult=success\nExecMainStatus=0\nNRestarts=0", None),
        (
            "ActiveState=failed\nResult=exit-code\nExecMainStatus=78\nNRestarts=0",
            "ended (exit-code, exit code 78) while starting",
        ),
        (
            "ActiveState=activating\nResult=success\nExecMainStatus=0\nNRestarts=2",
            "ended while starting, and is started again",
        ),
    ],
)
def test_a_failed_start_is_told_in_words(
    told: str, words: str | None, systemctl: FakeSystemctl
) -> None:
    systemctl.says(told)
    assert units.failure("pd-prefill@p0.service") == words


def test_the_journal_is_read_line_by_line(systemctl: FakeSystemctl) -> None:
    systemctl.says("one\ntwo")
    assert list(units.journal(["a.service"], 5)) == ["one", "two"]
    assert "--unit=a.service" in systemctl.calls()[0]
