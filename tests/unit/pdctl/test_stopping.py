"""Daemons end in the order that loses least."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl import stopping
from pdctl.processes import process_of
from pdctl.runs import Child
from pdctl.stopping import stop_in_order

# Writes its name when SIGTERM comes and ends; "stubborn" stays, "second" ends at the second one.
DAEMON = """
import signal, sys, time
name, log, kind = sys.argv[1:]
seen = 0
def ask(*_):
    global seen
    seen += 1
    open(log, "a").write(name + "\\n")
    if kind == "polite" or (kind == "second" and seen == 2):
        sys.exit(0)
signal.signal(signal.SIGTERM, ask)
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


class Cast:
    """Starts such daemons."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.running: list[subprocess.Popen[str]] = []

    def start(self, name: str, role: str, kind: str = "polite") -> Child:
        child = subprocess.Popen(
            [sys.executable, "-c", DAEMON, name, str(self.log), kind],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.running.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        process = process_of(child.pid)
        assert process is not None
        return Child(instance=name, role=role, pid=process.pid, started=process.started)


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    started = Cast(tmp_path / "order")
    yield started
    for child in started.running:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_lb_goes_first_and_the_phone_book_last(cast: Cast) -> None:
    children = [
        cast.start(name, role)
        for name, role in (
            ("bootstrap", "bootstrap"),
            ("d0", "decode"),
            ("p0", "prefill"),
            ("lb", "lb"),
        )
    ]
    assert stop_in_order(children, 20) == []
    assert cast.log.read_text().split() == ["lb", "p0", "d0", "bootstrap"]
    assert not [child for child in children if child.process.is_alive]


def test_who_stays_beyond_the_deadline_is_killed_and_named(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "GRACE_S", 0.1)
    children = [cast.start("p0", "prefill", "stubborn"), cast.start("d0", "decode")]
    assert stop_in_order(children, 0.1) == ["p0"]
    assert not [child for child in children if child.process.is_alive]
    assert cast.log.read_text().split() == ["p0", "d0"]


def test_a_hurry_is_a_second_sigterm(cast: Cast) -> None:
    child = cast.start("p0", "prefill", "second")
    assert stop_in_order([child], 60, hurry=lambda: True) == []
    assert cast.log.read_text().split() == ["p0", "p0"]


def test_progress_tells_who_is_left(cast: Cast) -> None:
    children = [cast.start("d0", "decode"), cast.start("lb", "lb")]
    told: list[list[str]] = []
    stop_in_order(children, 20, progress=lambda left: told.append([c.instance for c in left]))
    assert told[0] == ["d0", "lb"]
    assert told[-1] == ["d0"]


def test_who_is_gone_already_is_not_waited_for(cast: Cast) -> None:
    child = cast.start("lb", "lb")
    cast.running[0].kill()
    cast.running[0].wait()
    assert stop_in_order([child], 20) == []
