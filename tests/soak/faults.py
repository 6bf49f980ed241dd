"""Kills of p1 and d1, freezes of anybody, one at a time, with time to come back."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.support.cluster import Cluster

KILLED = ("p1", "d1")
FROZEN = ("p0", "p1", "d0", "d1", "bootstrap", "lb")
PAUSE_S = (3.0, 8.0)
FREEZE_S = (0.5, 5.0)


@dataclass
class Faults:
    """A thread that breaks things until its time is over."""

    cluster: Cluster
    seed: int
    until_s: float
    done: Counter[str] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="faults")
        self._thread.start()

    def stop(self) -> None:
        """End; whoever is frozen thaws."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(60)

    def summary(self) -> str:
        """Return what was done."""
        return ", ".join(f"{count} {name}" for name, count in sorted(self.done.items())) or "none"

    def _run(self) -> None:
        draw = random.Random(f"{self.seed}-faults")
        while time.monotonic() < self.until_s:
            if self._stop.wait(draw.uniform(*PAUSE_S)):
                return
            with contextlib.suppress(ProcessLookupError, IndexError):
                if draw.random() < 0.3:
                    self._kill(draw)
                else:
                    self._freeze(draw)

    def _kill(self, draw: random.Random) -> None:
        name = draw.choice(KILLED)
        pids = self.cluster.daemon_pids(name)
        os.kill(draw.choice(pids), signal.SIGKILL)
        self.done[f"kills of {name}"] += 1

    def _freeze(self, draw: random.Random) -> None:
        name = draw.choice(FROZEN)
        pid = draw.choice(self.cluster.daemon_pids(name))
        os.kill(pid, signal.SIGSTOP)
        try:
            self._stop.wait(draw.uniform(*FREEZE_S))
        finally:
            os.kill(pid, signal.SIGCONT)
        self.done[f"freezes of {name}"] += 1
