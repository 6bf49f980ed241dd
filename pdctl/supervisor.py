"""Keeps this host's daemons running where systemd does not: starts, restarts, ends in order.

A daemon that ends with 0 has drained and stays away; 78 (bad config) is final; anything else is
started again after a pause that doubles up to ``PAUSE_LIMIT_S`` and starts over after
``STABLE_S`` of running. A daemon has a process group of its own: the terminal's Ctrl-C reaches
only us, and what it leaves behind is killed with it.

``python -m pdctl.supervisor`` is the form that ``pdctl up --detach`` leaves behind.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from daemons.cluster.load import ClusterFile, load
from daemons.protocol.topology import Role
from pdctl.places import places
from pdctl.processes import process_of
from pdctl.runs import Child, Run, log_path, make_run_directory, write_run
from pdctl.stopping import stop_in_order

EXIT_DRAINED = 0
EXIT_BAD_CONFIG = 78
PAUSE_FIRST_S = 1.0
PAUSE_LIMIT_S = 30.0
STABLE_S = 60.0
LOG_BYTES_LIMIT = 64 << 20  # at a start, a longer log becomes NAME.log.1
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOOK = signal.SIGUSR1  # requests lie in the run's folder
RESTART = "restart-"  # a request's name, before the instance's

NO_PREFIX_CACHE = "--no-prefix-cache"  # a word that pd-prefill and pd-decode know


@dataclass(frozen=True, slots=True)
class Launch:
    """How one daemon is started."""

    instance: str
    role: Role
    argv: tuple[str, ...]


def launches(file: ClusterFile, host: str, words: Sequence[str] = ()) -> list[Launch]:
    """Return what runs on ``host``, in starting order; ``words`` are said to every worker."""
    found = []
    for place in places(file.cluster).values():
        if place.host != host:
            continue
        argv = [sys.executable, "-m", f"daemons.{place.role.value}", "--config", str(file.path)]
        if place.role in (Role.PREFILL, Role.DECODE):
            argv += ["--instance", place.instance, *words]
        found.append(Launch(place.instance, place.role, tuple(argv)))
    return found


@dataclass(slots=True)
class Life:
    """One daemon between its lives."""

    launch: Launch
    child: Child
    popen: subprocess.Popen[bytes] | None = None
    pidfd: int = -1
    began: float = 0.0
    pause_s: float = PAUSE_FIRST_S
    due: float | None = None  # when it is started again
    wanted_again: bool = False  # it was asked to end, and is to be started at once


@dataclass(slots=True)
class Supervisor:
    """Owns the daemons of one cluster on this host."""

    directory: Path
    run: Run
    lives: list[Life]
    stop_asked: int = 0  # how often
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _wake: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)

    def start(self) -> None:
        """Take over the signals and start every daemon."""
        reading, writing = self._wake
        reading.setblocking(False)
        writing.setblocking(False)
        self._selector.register(reading, selectors.EVENT_READ)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(LOOK, lambda *_: None)  # the wake-up alone says it
        for life in self.lives:
            self._spawn(life)
        write_run(self.directory, self.run)

    def step(self, timeout_s: float | None = None) -> None:
        """Sleep until something happens or ``timeout_s`` is over, and deal with what did."""
        now = time.monotonic()
        waits = [life.due - now for life in self.lives if life.due is not None]
        if timeout_s is not None:
            waits.append(timeout_s)
        woken = self._selector.select(max(min(waits), 0) if waits else None)
        for key, _ in woken:
            if isinstance(key.data, Life):
                self._reap(key.data)
            else:
                self._wake[0].recv(512)
                self._obey()
        now = time.monotonic()
        due = [life for life in self.lives if life.due is not None and life.due <= now]
        for life in due:
            life.child.restarts += 1
            self._spawn(life)
        if due or any(isinstance(key.data, Life) for key, _ in woken):
            write_run(self.directory, self.run)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing will be started again."""
        return all(life.popen is None and life.due is None for life in self.lives)

    def stop(self, deadline_s: float) -> list[str]:
        """End every daemon in order; returns the names of those that had to be killed."""
        self.run.stopping = True
        for life in self.lives:
            if life.due is not None:
                life.due, life.child.state = None, "left"
        write_run(self.directory, self.run)
        before = self.stop_asked
        killed = stop_in_order(
            self.run.alive, deadline_s, hurry=lambda: self.stop_asked > max(before, 1)
        )
        for life in self.lives:
            if life.popen is not None:
                self._reap(life, leave=True)
        write_run(self.directory, self.run)
        return killed

    def close(self) -> None:
        """Give signals and descriptors back."""
        signal.set_wakeup_fd(-1)
        for number in (*SIGNALS, LOOK):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        for end in self._wake:
            end.close()

    def _on_signal(self, *_: object) -> None:
        self.stop_asked += 1

    def _obey(self) -> None:
        """Let daemons whose restart was asked for end; they are started again."""
        for request in self.directory.glob(f"{RESTART}*"):
            request.unlink(missing_ok=True)
            for life in self.lives:
                if life.child.instance != request.name.removeprefix(RESTART):
                    continue
                if life.popen is None:
                    life.due = time.monotonic()
                else:
                    life.wanted_again = True
                    life.popen.send_signal(signal.SIGTERM)

    def _spawn(self, life: Life) -> None:
        child = life.child
        path = log_path(self.run.cluster, child.instance)
        if path.exists() and path.stat().st_size > LOG_BYTES_LIMIT:
            path.replace(path.with_suffix(".log.1"))
        with path.open("ab") as log:
            life.popen = subprocess.Popen(
                life.launch.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = process_of(life.popen.pid)
        assert process is not None  # ours, and not waited for yet
        child.pid, child.started = process.pid, process.started
        child.state, child.since_s = "running", time.time()
        life.due, life.began = None, time.monotonic()
        life.pidfd = os.pidfd_open(life.popen.pid)
        self._selector.register(life.pidfd, selectors.EVENT_READ, life)

    def _reap(self, life: Life, *, leave: bool = False) -> None:
        popen = life.popen
        assert popen is not None
        self._selector.unregister(life.pidfd)
        os.close(life.pidfd)
        with contextlib.suppress(ProcessLookupError):
            # Its group may hold ranks. While it is not waited for, the number is not reused.
            os.killpg(popen.pid, signal.SIGKILL)
        code = popen.wait()
        life.popen, life.pidfd = None, -1
        child = life.child
        child.exit_code, child.since_s = code, time.time()
        wanted, life.wanted_again = life.wanted_again and not leave, False
        if wanted:
            child.state, life.due = "waiting", time.monotonic()
        elif code == EXIT_DRAINED or leave:
            child.state = "left"
        elif code == EXIT_BAD_CONFIG:
            child.state = "failed"
        else:
            if time.monotonic() - life.began > STABLE_S:
                life.pause_s = PAUSE_FIRST_S
            child.state, life.due = "waiting", time.monotonic() + life.pause_s
            life.pause_s = min(life.pause_s * 2, PAUSE_LIMIT_S)


def ask_restart(directory: Path, run: Run, instance: str) -> bool:
    """Ask a run's supervisor to restart a daemon; say whether there is one to ask."""
    if run.child(instance) is None or not run.supervisor.is_alive:
        return False
    (directory / f"{RESTART}{instance}").touch()
    run.supervisor.send(LOOK)
    return True


def prepare(file: ClusterFile, host: str, words: Sequence[str] = ()) -> Supervisor:
    """Return a supervisor of this host's daemons, with its folders made; nothing is started.

    ``words`` are said to every worker.
    """
    cluster = file.cluster.name
    directory = make_run_directory(cluster)
    lives = [
        Life(launch, Child(instance=launch.instance, role=launch.role.value))
        for launch in launches(file, host, words)
    ]
    own = process_of(os.getpid())
    assert own is not None
    run = Run(
        cluster=cluster,
        config=str(file.path),
        config_hash=file.hash,
        host=host,
        supervisor_pid=own.pid,
        supervisor_started=own.started,
        began_s=time.time(),
        children=[life.child for life in lives],
    )
    return Supervisor(directory, run, lives)


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervise until a signal or until no daemon is left; returns the exit code."""
    parser = argparse.ArgumentParser(prog="pdctl.supervisor")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--deadline", type=float, required=True)
    parser.add_argument(NO_PREFIX_CACHE, action="store_true")
    flags = parser.parse_args(arguments)
    words = [NO_PREFIX_CACHE] if flags.no_prefix_cache else []
    supervisor = prepare(load(flags.config), flags.host, words)
    supervisor.start()
    while not supervisor.stop_asked and not supervisor.is_idle:
        supervisor.step()
    supervisor.stop(flags.deadline)
    return 0


if __name__ == "__main__":
    sys.exit(main())
