from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from daemons.engine.native.abi import Library, Team, checked
from tests.support.native import library


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_a_file_that_is_no_library_is_the_operators_error(tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    path.write_bytes(b"not one")
    with pytest.raises(OperatorError, match="cannot load the kernels"):
        Library(path)


def test_a_team_is_so_many_threads_and_takes_them_with_it() -> None:
    before = threads()
    team = Team(library(), 3)
    assert threads() == before + 2  # the caller is the third
    del team
    gc.collect()
    deadline = time.monotonic() + 5
    while threads() != before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threads() == before


def test_members_stay_on_the_cores_that_they_are_given() -> None:
    before = set(os.listdir("/proc/self/task"))
    core = max(os.sched_getaffinity(0))
    team = Team(library(), 2, (min(os.sched_getaffinity(0)), core))
    (other,) = set(os.listdir("/proc/self/task")) - before
    deadline = time.monotonic() + 5
    while os.sched_getaffinity(int(other)) != {core} and time.monotonic() < deadline:
        time.sleep(0.001)
    assert os.sched_getaffinity(int(other)) == {core}
    assert team.members == 2


def test_a_team_without_work_sleeps() -> None:
    before = set(os.listdir("/proc/self/task"))
    team = Team(library(), 2)
    (other,) = set(os.listdir("/proc/self/task")) - before
    deadline = time.monotonic() + 10
    while state_of(other) != "S" and time.monotonic() < deadline:
        time.sleep(0.001)
    assert state_of(other) == "S"
    assert team.members == 2


def state_of(thread: str) -> str:
    """R: it runs or wants to; S: it sleeps."""
    return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]


def test_what_a_kernel_lacks_is_raised() -> None:
    checked(None)
    with pytest.raises(MemoryError, match="no memory for a forward"):
        checked(b"no memory for a forward")
