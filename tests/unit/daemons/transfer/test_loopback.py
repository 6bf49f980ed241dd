"""The backend inside one process; what it shares with others is in the conformance suite."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from daemons.transfer.backend import Copy, Region, WriteCut
from daemons.transfer.config import TransferConfig
from daemons.transfer.loopback import Loopback, create


@pytest.fixture
def memory() -> np.ndarray:
    return np.arange(1, 9, dtype=np.uint8)


@pytest.fixture
def receiver() -> Iterator[Loopback]:
    backend = create(TransferConfig(backend="loopback"), "127.0.0.1")
    yield backend
    backend.close()


def region(array: np.ndarray) -> Region:
    return Region(array.ctypes.data, array.nbytes)


def test_a_mover_that_fails_cuts_the_write_where_it_was(
    memory: np.ndarray, receiver: Loopback
) -> None:
    target = np.zeros(8, dtype=np.uint8)
    moved: list[int] = []

    def move(to: int, source: int, length: int) -> None:
        if moved:
            raise OSError("link down")
        moved.append(length)
        ctypes.memmove(to, source, length)

    sender = Loopback(move)
    sender.register([region(memory)])
    receiver.register([region(target)])
    copies = [Copy(memory.ctypes.data + i, target.ctypes.data + i, 1) for i in range(3)]
    with pytest.raises(WriteCut, match=r"copy 1 of 3.*link down"):
        sender.write(receiver.session, copies)
    assert target.tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    sender.close()


def test_a_session_may_write_to_itself(memory: np.ndarray, receiver: Loopback) -> None:
    receiver.register([region(memory)])
    receiver.write(receiver.session, [Copy(memory.ctypes.data, memory.ctypes.data + 4, 4)])
    assert memory.tolist() == [1, 2, 3, 4, 1, 2, 3, 4]


def test_sessions_are_never_used_twice() -> None:
    names = set()
    for _ in range(3):
        backend = Loopback()
        names.add(backend.session)
        backend.close()
    assert len(names) == 3
