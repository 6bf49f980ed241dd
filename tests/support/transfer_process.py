"""A peer of a transfer backend in a process of its own, and waiting for what it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "transfer_peer.py"
ROOT = Path(__file__).parents[2]


class Process:
    """A peer in a process of its own."""

    def __init__(
        self, length: int, host: str = "127.0.0.1", *before: str, backend: str = "mooncake"
    ) -> None:
        """``before`` are words in front of the command, such as ``ip netns exec NAME``."""
        self._process = subprocess.Popen(
            [*before, sys.executable, str(PROGRAM), host, str(length), backend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
            text=True,
        )
        told = self._answer()
        self.session: str = told["session"]
        self.address: int = told["address"]
        self.pid: int = told["pid"]

    def ask(self, *words: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)
        until(lambda: self._state() == "T", "the process to stop")

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def _state(self) -> str:
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the peer ended with {self._process.wait(10)}"
        return json.loads(line)


def until(condition: Callable[[], bool], what: str, limit_s: float = 10.0) -> None:
    """Wait for a condition; fails when it does not come true in time."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {limit_s} s for {what}"
        time.sleep(0.005)


def settled(
    count: Callable[[], int], limit_s: float = 20.0, still_s: float = 1.0
) -> tuple[int, float]:
    """Return a count that has stood still for a while, and when it last changed, in s from now."""
    begin_s = changed_s = time.monotonic()
    last = count()
    while time.monotonic() < changed_s + still_s:
        assert time.monotonic() < begin_s + limit_s, "bytes keep on landing"
        now = count()
        if now != last:
            last, changed_s = now, time.monotonic()
        time.sleep(0.01)
    return last, changed_s - begin_s
