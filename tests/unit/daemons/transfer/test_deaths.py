from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from threading import Event

import pytest

from daemons.transfer.deaths import Deaths, Life

LIMIT_S = 10.0


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-c", "input()"]
    some = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    yield some
    for one in some:
        one.kill()
        one.communicate()


def test_the_end_of_a_process_is_told_and_no_others(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    deaths, ends = Deaths(), [Event(), Event()]
    for sleeper, end in zip(sleepers, ends, strict=True):
        deaths.watch(Life(sleeper.pid), end.set)
    sleepers[1].kill()
    assert ends[1].wait(LIMIT_S)
    assert not ends[0].is_set()
    deaths.close()


def test_a_process_that_is_not_there_has_no_life() -> None:
    with pytest.raises(OSError, match="No such process"):
        Life(2**30)


def test_a_life_has_ended_when_its_process_has(sleepers: list[subprocess.Popen[bytes]]) -> None:
    life = Life(sleepers[0].pid)
    assert not life.has_ended()
    sleepers[0].kill()
    sleepers[0].wait()
    assert life.has_ended()


def test_a_life_that_nobody_holds_keeps_no_file() -> None:
    life = Life(os.getpid())
    file = life.file
    os.fstat(file)
    del life
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(file)


def test_after_close_nobody_is_told(sleepers: list[subprocess.Popen[bytes]]) -> None:
    deaths, end = Deaths(), Event()
    deaths.watch(Life(sleepers[0].pid), end.set)
    deaths.close()
    deaths.watch(Life(sleepers[1].pid), end.set)
    sleepers[0].kill()
    sleepers[0].wait()
    assert not end.is_set()
    assert deaths._thread is not None
    assert not deaths._thread.is_alive()
