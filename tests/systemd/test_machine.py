"""The harness itself: machines boot, are apart, are joined, and leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.systemd.machine import booted, cable, until, why_not
from tests.systemd.ssh import why_not as why_no_ssh


def test_ci_can_boot_systemd() -> None:
    """So that nothing in this folder is skipped there."""
    assert not (os.environ.get("CI") and (why_not() or why_no_ssh()))


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_two_machines_have_files_and_a_wire_of_their_own(tmp_path: Path) -> None:
    with (
        booted(tmp_path / "a", "a") as a,
        booted(tmp_path / "b", "b") as b,
        cable(a, b, ("10.77.0.1/24", "10.77.0.2/24")) as wire,
    ):
        assert a.run("hostname").stdout.strip() == "a"
        a.write("/etc/only-on-a", "yes")
        assert not b.path("/etc/only-on-a").exists()
        assert not Path("/etc/only-on-a").exists()
        knock = ("bash", "-c", "exec 3<>/dev/tcp/10.77.0.2/9")
        assert "refused" in a.run(*knock, check=False).stderr
        wire.pull()
        assert "refused" not in a.run("timeout", "1", *knock, check=False).stderr
        wire.plug()
        assert until(lambda: "refused" in a.run("timeout", "1", *knock, check=False).stderr)
        groups = [Path((tmp_path / name / "cgroup").read_text().strip()) for name in "ab"]
        assert all(group.exists() for group in groups)
    assert not any(group.exists() for group in groups)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
