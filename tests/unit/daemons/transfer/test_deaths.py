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


def test_one_that_is_watched_no_more_is_not_told_and_keeps_no_file(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    deaths, first, second = Deaths(), Event(), Event()
    life = Life(sleepers[0].pid)
    file = life.file
    deaths.watch(life, first.set)
    deaths.unwatch(life)
    deaths.unwatch(life)
    del life
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(file)
    deaths.watch(Life(sleepers[1].pid), second.set)
    for sleeper in sleepers:
        sleeper.kill()
    assert second.wait(LIMIT_S)
    assert not first.is_set()
    deaths.close()
    deaths.unwatch(Life(os.getpid()))


def test_a_number_that_another_life_has_by_now_is_not_its_end(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    deaths, end = Deaths(), Event()
    life = Life(sleepers[0].pid)
    deaths.watch(life, end.set)
    assert deaths._taken(life.file) is None
    assert deaths._taken(10**6) is None
    sleepers[0].kill()
    assert end.wait(LIMIT_S)
    deaths.close()


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
