"""The systemd units of the daemons: their names, and what systemctl is asked about them.

Every verb takes the host it is about: None is this one, anything else is reached by systemctl's
own ``--host`` (ssh).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from daemons.protocol.topology import Role
from pdctl.errors import CommandError, Exit

UNIT_DIRECTORIES = (Path("/etc/systemd/system"), Path("/usr/lib/systemd/system"))
TARGET = "pd.target"
ASK_S = 15.0
STOPPING = ("lb", "prefill", "decode", "bootstrap")
START_S = 660.0  # a worker's TimeoutStartSec and a little more
STOP_LEAD_S = 30.0


def unit_of(role: Role, instance: str) -> str:
    """Return the unit of a daemon: ``pd-prefill@p0.service``, ``pd-lb.service``."""
    if role in (Role.PREFILL, Role.DECODE):
        return f"pd-{role.value}@{instance}.service"
    return f"pd-{role.value}.service"


def instance_of(unit: str) -> str:
    """Return the instance that a service runs: ``p0`` of ``pd-prefill@p0.service``."""
    head, _, name = unit.removesuffix(".service").rpartition("@")
    return name if head else name.removeprefix("pd-")


def unit_named(instance: str) -> str:
    """Return the unit of an instance by its enabled link; "" where none is enabled here."""
    for directory in UNIT_DIRECTORIES:
        for link in sorted((directory / f"{TARGET}.wants").glob("*.service")):
            if instance_of(link.name) == instance:
                return link.name
    return ""


def enabled(directory: Path = UNIT_DIRECTORIES[0]) -> list[str]:
    """Return our units of this host in stopping order: sockets, then lb, prefill, decode, book."""
    names = [link.name for link in (directory / f"{TARGET}.wants").glob("pd-*")]
    return sorted(names, key=stopping_order)


def stopping_order(unit: str) -> tuple[bool, int, str]:
    """Return a key to sort units by, so that nothing is asked of a daemon that has gone."""
    roles = [unit.startswith(f"pd-{role}") for role in STOPPING]
    return not unit.endswith(".socket"), roles.index(True) if True in roles else -1, unit


def running() -> bool:
    """Say whether systemd is this host's service manager."""
    return Path("/run/systemd/system").is_dir()


def installed(directories: Sequence[Path] = UNIT_DIRECTORIES) -> bool:
    """Say whether systemd runs here and knows our target."""
    return running() and any((directory / TARGET).exists() for directory in directories)


def start(units: Sequence[str], *, host: str | None = None) -> None:
    """Ask for units to be started, and return at once; failures of earlier are forgotten.

    Raises:
        CommandError: systemd refuses, or cannot be reached.
    """
    systemctl("reset-failed", *units, host=host, may_fail=True)
    systemctl("start", "--no-block", *units, host=host)


def stop(units: Sequence[str], *, host: str | None = None, within_s: float = START_S) -> None:
    """Stop units, which drain, and return when they have ended.

    Raises:
        CommandError: systemd refuses, cannot be reached, or they do not end in time.
    """
    systemctl("stop", *units, host=host, within_s=within_s)


def restart(unit: str, *, host: str | None = None, within_s: float = START_S) -> None:
    """Stop a unit, which drains, start it, and return when it serves; raises CommandError."""
    systemctl("reset-failed", unit, host=host, may_fail=True)
    systemctl("restart", unit, host=host, within_s=within_s)


def reload(unit: str, *, host: str | None = None) -> None:
    """Let a daemon read its file again; a bad file changes nothing and raises CommandError."""
    systemctl("reload", unit, host=host, within_s=60.0)


def kill(unit: str, *, host: str | None = None) -> None:
    """End a unit's processes at once; raises CommandError."""
    systemctl("kill", "--signal=KILL", unit, host=host)


def daemon_reload(*, host: str | None = None) -> None:
    """Let systemd read unit files again; raises CommandError."""
    systemctl("daemon-reload", host=host, within_s=60.0)


def show(unit: str, *names: str, host: str | None = None) -> Mapping[str, str]:
    """Return properties of a unit by name; raises CommandError."""
    told = systemctl("show", unit, *(f"--property={name}" for name in names), host=host)
    pairs = (line.partition("=") for line in told.splitlines())
    return {name: value for name, _, value in pairs}


def is_active(unit: str, *, host: str | None = None) -> bool:
    """Say whether a unit runs and is ready; raises CommandError."""
    return show(unit, "ActiveState", host=host)["ActiveState"] == "active"


def failure(unit: str, *, host: str | None = None) -> str | None:
    """Return why a unit that was started does not run, in words; None while it may yet.

    Raises:
        CommandError: systemd cannot be asked.
    """
    told = show(unit, "ActiveState", "Result", "ExecMainStatus", "NRestarts", host=host)
    if told["ActiveState"] == "failed":
        return f"ended ({told['Result']}, exit code {told['ExecMainStatus']}) while starting"
    return "ended while starting, and is started again" if told["NRestarts"] != "0" else None


def journal(units: Sequence[str], lines: int, *, follow: bool = False) -> Iterator[str]:
    """Yield the last lines of units of this host, and new ones for ever if asked.

    Raises:
        CommandError: there is no journal.
    """
    argv = ["journalctl", "--quiet", "--no-pager", "--output=cat", f"--lines={lines}"]
    argv += [*(f"--unit={unit}" for unit in units), *(("--follow",) if follow else ())]
    try:
        reader = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise CommandError("journalctl cannot be run", str(error)) from error
    with reader:
        assert reader.stdout is not None
        try:
            for line in reader.stdout:
                yield line.rstrip("\n")
        finally:
            reader.terminate()


def systemctl(
    *words: str, host: str | None = None, within_s: float = ASK_S, may_fail: bool = False
) -> str:
    """Run systemctl and return what it prints.

    Raises:
        CommandError: it fails, or takes longer than ``within_s``.
    """
    argv = ["systemctl", *(("--host", host) if host else ()), *words]
    place = f" on {host}" if host else ""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=within_s, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise CommandError("systemctl is not installed", "pdctl up supervises without it") from None
    except subprocess.TimeoutExpired:
        what = f"systemctl {' '.join(words)}{place} did not end in {within_s:.0f} s"
        raise CommandError(what, "systemctl status shows why", code=Exit.TIMEOUT) from None
    if done.returncode and not may_fail:
        last = done.stderr.strip().splitlines()
        what = f"systemctl {' '.join(words)}{place}: {last[-1] if last else done.returncode}"
        raise CommandError(what, "run it as root, or see journalctl -xe")
    return done.stdout
