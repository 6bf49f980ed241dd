"""One engine and its sharp edges."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from daemons.cluster.errors import OperatorError
from daemons.transfer import sockets
from daemons.transfer.backend import Copy, Region
from daemons.transfer.mooncake_engine import Engine, Sent, end_all
from daemons.transfer.mooncake_env import PORTS


@pytest.fixture
def engine(module: Any) -> Iterator[Engine]:
    engine = Engine(module, "127.0.0.1", "")
    yield engine
    engine.end()


@pytest.fixture
def memory(engine: Engine) -> np.ndarray:
    array = np.arange(64, dtype=np.uint8)
    engine.register([Region(array.ctypes.data, 64)])
    return array


def session(engine: Engine) -> str:
    return f"127.0.0.1:{engine.port}"


def final(engine: Engine, number: int) -> Sent:
    while (sent := engine.check(number)) is Sent.RUNNING:
        pass
    return sent


def begun(engine: Engine, copy: Copy) -> int:
    number = engine.submit(session(engine), copy)
    assert number is not None
    return number


def test_a_copy_is_done_when_its_bytes_are_there(engine: Engine, memory: np.ndarray) -> None:
    assert engine.open(session(engine))
    at = memory.ctypes.data
    assert final(engine, begun(engine, Copy(at, at + 32, 32))) is Sent.DONE
    assert memory[32:].tolist() == list(range(32))


def test_a_copy_into_memory_that_nobody_registered_fails(
    engine: Engine, memory: np.ndarray
) -> None:
    at = memory.ctypes.data
    assert final(engine, begun(engine, Copy(at, at + 64, 1))) is Sent.FAILED


def test_a_final_copy_is_not_asked_for_again(engine: Engine, memory: np.ndarray) -> None:
    number = begun(engine, Copy(memory.ctypes.data, memory.ctypes.data + 32, 32))
    final(engine, number)
    with pytest.raises(AssertionError, match="final before"):
        engine.check(number)


@pytest.mark.parametrize("number", [0, 1, -1, 2**64 - 1])
def test_an_id_that_was_never_given_is_not_asked_for(engine: Engine, number: int) -> None:
    with pytest.raises(AssertionError, match="unknown"):
        engine.check(number)


def test_a_session_that_nobody_has_is_not_opened_and_takes_no_copy(engine: Engine) -> None:
    assert not engine.open("127.0.0.1:9")
    assert engine.submit("127.0.0.1:9", Copy(1, 1, 1)) is None


def test_overlapping_memory_is_refused_by_name_of_the_limit(
    engine: Engine, memory: np.ndarray
) -> None:
    with pytest.raises(OperatorError) as caught:
        engine.register([Region(memory.ctypes.data, 64)])
    assert "LimitMEMLOCK" in caught.value.hint


def test_an_ended_engine_has_no_sockets_and_refuses_everything(module: Any) -> None:
    before = sockets.listening(PORTS)
    engine = Engine(module, "127.0.0.1", "")
    assert engine.port in sockets.listening(PORTS) - before
    engine.end()
    assert sockets.listening(PORTS) == before
    with pytest.raises(AssertionError, match="has ended"):
        engine.open("127.0.0.1:9")
    engine.end()


def test_an_engine_that_somebody_still_holds_is_told(module: Any) -> None:
    engine = Engine(module, "127.0.0.1", "")
    held = engine._engine
    with pytest.raises(AssertionError, match="outlives"):
        end_all([engine])
    del held


def test_another_process_may_not_use_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        with pytest.raises(AssertionError, match="used in 1"):
            engine.open("127.0.0.1:9")
