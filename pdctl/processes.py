"""Processes that pdctl started, named so that a reused pid is never taken for one of them.

A process is its pid and its start time. Signals go through a pidfd that is opened before the
start time is compared, so nothing can slip in between.
"""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

_STATE = 0  # fields of /proc/PID/stat after the command's name, see proc(5)
_START = 19


@dataclass(frozen=True, slots=True)
class Process:
    """One process in one life."""

    pid: int
    started: int  # clock ticks after boot

    @property
    def is_alive(self) -> bool:
        """Whether it still runs (a dead one that nobody has waited for does not)."""
        seen = _stat(self.pid)
        return seen is not None and seen[_START] == str(self.started) and seen[_STATE] not in "ZX"

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; returns whether the process was there to get it."""
        fd = _open(self.pid)
        if fd is None:
            return False
        try:
            if not self.is_alive:
                return False
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    def kill_group(self) -> None:
        """Kill it and all that it started in its own process group, without mercy."""
        if self.is_alive and os.getpgid(self.pid) == self.pid:
            os.killpg(self.pid, signal.SIGKILL)
        else:
            self.send(signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; returns whether it has."""
        fd = _open(self.pid)
        if fd is None or not self.is_alive:
            if fd is not None:
                os.close(fd)
            return True
        try:
            readable, _, _ = select.select([fd], [], [], max(timeout_s, 0))
        finally:
            os.close(fd)
        return bool(readable)


def process_of(pid: int) -> Process | None:
    """Return the process that has this pid now."""
    seen = _stat(pid)
    return Process(pid, int(seen[_START])) if seen else None


def start_detached(command: list[str], log: Path) -> Process:
    """Start a process that outlives us, in a session of its own, its words going to ``log``."""
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    process = process_of(pid)
    assert process is not None  # nobody has waited for it
    return process


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the name before may hold spaces and brackets
