"""Another process writes into this one's memory, and what keeps it from that is told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from daemons.kv import shareable
from daemons.transfer import other_memory, proof
from daemons.transfer.backend import Region
from daemons.transfer.cma import Cma
from daemons.transfer.proof import BYTES, proven, written


@pytest.fixture
def shown() -> Iterator[tuple[np.ndarray, tuple[str, int]]]:
    backend = Cma()
    memory = np.frombuffer(shareable.shareable(BYTES), dtype=np.uint8)
    backend.register([Region(memory.ctypes.data, BYTES)])
    yield memory, (backend.session, memory.ctypes.data)
    backend.close()


def test_both_ways_are_proven_by_another_process() -> None:
    told = proven()
    assert set(told) == {"shm", "cma"}
    assert all(set(one) == {"ms"} for one in told.values())


def test_the_writer_fills_all_of_the_memory(shown: Any) -> None:
    memory, place = shown
    told = written({"shm": place})
    assert set(told["shm"]) == {"ms", "crc"}
    assert len(np.unique(memory)) == 256


def test_what_went_another_way_is_no_proof(shown: Any) -> None:
    assert written({"cma": shown[1]}) == {"cma": {"why": "it went by shm"}}


def test_a_refusal_is_told_in_the_words_of_the_system(
    shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pid: int, address: int, length: int) -> bytes:
        raise PermissionError(1, "Operation not permitted")

    backend, plain = Cma(), np.zeros(BYTES, dtype=np.uint8)
    backend.register([Region(plain.ctypes.data, BYTES)])
    monkeypatch.setattr(other_memory, "read", refused)
    told = written({"shm": shown[1], "cma": (backend.session, plain.ctypes.data)})
    assert "ms" in told["shm"]
    assert told["cma"]["why"].endswith("cannot be reached: Operation not permitted")
    backend.close()


def test_a_write_that_is_cut_is_told(shown: Any) -> None:
    session, address = shown[1]
    assert "outside the peer's memory" in written({"shm": (session, address + 1)})["shm"]["why"]


def test_without_memory_to_show_no_writer_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shareable, "_file", lambda length: None)
    monkeypatch.delattr(proof, "subprocess")
    told = proven()
    why = "no memory here that another process could map"
    assert told == {"shm": {"why": why}, "cma": {"why": why}}


@pytest.mark.parametrize(
    ("code", "said", "why"),
    [
        (1, "Traceback\nImportError: no numpy\n", "the writer died: ImportError: no numpy"),
        (1, "", "the writer died: exit code 1"),
        (-31, "", "the writer died: SIGSYS"),
    ],
)
def test_a_writer_that_dies_is_told_with_its_last_words(
    code: int, said: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], code, "", said)

    monkeypatch.setattr(subprocess, "run", run)
    assert proven() == {"shm": {"why": why}, "cma": {"why": why}}


def test_a_writer_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "LIMIT_S", 0.1)
    run = subprocess.run

    def sleeps(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        return run(["sleep", "60"], **how)

    monkeypatch.setattr(subprocess, "run", sleeps)
    assert "not done" in proven()["cma"]["why"]


def test_bytes_that_came_changed_are_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "_asked", lambda places: {n: {"ms": 1, "crc": 5} for n in places})
    why = {"why": "what was written is not what came"}
    assert proven() == {"shm": why, "cma": why}
