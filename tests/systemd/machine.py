"""A host of a test's own: real systemd as PID 1 in namespaces, with its own network and files.

Nothing that is done inside is seen outside, and everything ends with the context. Several machines
are joined by a cable, which can be pulled.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

HERE = Path(__file__).parent
BOOT_S = 90.0  # half a minute with nothing else to do, as with all that is only patience
COMMAND_S = 120.0
POWER_OFF = signal.SIGRTMIN + 4  # systemd(1): start poweroff.target

T = TypeVar("T")


def why_not() -> str:
    """Return why no machine can be booted here, "" when one can."""
    if os.geteuid() != 0:
        return "booting systemd in namespaces needs root"
    if "cgroup2" not in Path("/proc/mounts").read_text():
        return "no cgroup2 is mounted"
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if not Path("/lib/systemd/systemd").exists():
        return "systemd is not installed"
    return ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that is up."""

    name: str
    pid: int  # of its systemd, seen from outside

    def run(
        self, *argv: str, within_s: float = COMMAND_S, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as root, in a bare environment.

        Raises:
            AssertionError: it failed, and ``check`` says that it must not.
        """
        done = subprocess.run(
            self.argv(*argv), capture_output=True, text=True, timeout=within_s, env=ENVIRONMENT
        )
        told = f"{self.name}: {' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert not check or done.returncode == 0, told
        return done

    def argv(self, *argv: str) -> list[str]:
        """Return the command line that runs ``argv`` inside."""
        return ["nsenter", "-t", str(self.pid), "--all", "--", *argv]

    def path(self, inside: str) -> Path:
        """Return where a path of the machine is found from outside."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def write(self, inside: str, text: str) -> None:
        """Write a file inside, with its folders."""
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def show(self, unit: str, name: str) -> str:
        """Return one property of a unit."""
        return self.run("systemctl", "show", "-p", name, "--value", unit).stdout.strip()

    def journal(self, unit: str) -> str:
        """Return what a unit has logged, and what systemd said of it."""
        return self.run("journalctl", "--no-pager", "-u", unit, "-o", "cat").stdout


ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}


@contextlib.contextmanager
def booted(
    folder: Path, name: str, binds: Mapping[Path, str] = MappingProxyType({})
) -> Iterator[Machine]:
    """Boot a machine; ``binds`` are folders of ours and where it sees them, read-only."""
    folder.mkdir(parents=True, exist_ok=True)
    log = (folder / "boot.log").open("w")
    boot = subprocess.Popen(
        [str(HERE / "boot"), str(folder), name, *(f"{out}:{to}" for out, to in binds.items())],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    try:
        pid = until(lambda: _init_of(boot), BOOT_S)
        assert pid, f"{name} did not boot: {(folder / 'boot.log').read_text()}"
        machine = Machine(name, pid)
        up = until(lambda: _is_up(machine), BOOT_S)
        assert up, f"{name} did not come up: {(folder / 'console').read_text()[-4000:]}"
        yield machine
    finally:
        _end(boot, folder)
        log.close()


@contextlib.contextmanager
def cable(one: Machine, other: Machine, addresses: tuple[str, str]) -> Iterator[Cable]:
    """Join two machines by a network of their own, ``addresses`` like ``10.77.0.1/24``."""
    join = Cable(one, other)
    ends = [("type", "veth", "peer", "name", "eth0", "netns", str(other.pid))]
    _host("ip", "link", "add", "eth0", "netns", str(one.pid), *ends[0])
    for machine, address in zip((one, other), addresses, strict=True):
        machine.run("ip", "address", "add", address, "dev", "eth0", "nodad")
        machine.run("ip", "link", "set", "eth0", "up")
    try:
        yield join
    finally:
        one.run("ip", "link", "delete", "eth0", check=False)


@dataclass(frozen=True, slots=True)
class Cable:
    """A wire between two machines."""

    one: Machine
    other: Machine

    def pull(self) -> None:
        """Cut it: no packet passes, and nobody is told."""
        self.other.run("ip", "link", "set", "eth0", "down")

    def plug(self) -> None:
        """Join it again; the addresses stay (IPv4)."""
        self.other.run("ip", "link", "set", "eth0", "up")


def until(what: Callable[[], T], within_s: float = 20.0) -> T:
    """Return the first true value of ``what``, or its last one at the deadline."""
    deadline = time.monotonic() + within_s
    while True:
        value = what()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(0.05)


def _init_of(boot: subprocess.Popen[bytes]) -> int:
    """Return the pid of the machine's systemd, 0 while it is not there yet."""
    assert boot.poll() is None, f"boot ended with {boot.returncode}"
    children = Path(f"/proc/{boot.pid}/task/{boot.pid}/children")
    for pid in children.read_text().split():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                return int(pid)
    return 0


def _is_up(machine: Machine) -> bool:
    told = machine.run("systemctl", "is-system-running", check=False).stdout.strip()
    return told in ("running", "degraded")


def _end(boot: subprocess.Popen[bytes], folder: Path) -> None:
    """Power off, kill what is left, and remove the control group."""
    with contextlib.suppress(OSError):
        for pid in Path(f"/proc/{boot.pid}/task/{boot.pid}/children").read_text().split():
            os.kill(int(pid), POWER_OFF)
    with contextlib.suppress(subprocess.TimeoutExpired):
        boot.wait(timeout=10.0)
    boot.kill()
    boot.wait()
    if (folder / "cgroup").exists():
        group = Path((folder / "cgroup").read_text().strip())
        until(lambda: _removed(group), 10.0)


def _removed(group: Path) -> bool:
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    return not group.exists()


def _host(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=COMMAND_S)
