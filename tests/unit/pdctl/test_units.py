"""Names of units, and the packaged units themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from daemons.protocol.topology import Role
from pdctl.share import share_directory
from pdctl.units import installed, unit_of

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
    names = [name.replace("@.", "@x0.") for name in (*SERVICES, "pd.target")]
    for name in names:
        done = subprocess.run(
            ["systemd-analyze", "verify", f"./{name}"],
            cwd=units,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), name
