"""Memory of another process; here of our own, which the kernel treats alike."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from daemons.transfer import other_memory
from daemons.transfer.backend import CopyTable


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_bytes_are_read() -> None:
    array = np.arange(10, dtype=np.uint8)
    assert other_memory.read(os.getpid(), address(array), 10) == bytes(range(10))


@pytest.mark.parametrize(
    ("pid", "at", "number"),
    [(os.getpid(), 4096, errno.EFAULT), (2**30, 4096, errno.ESRCH)],
    ids=["nothing is there", "nobody is there"],
)
def test_what_cannot_be_read_says_why(pid: int, at: int, number: int) -> None:
    with pytest.raises(OSError, match=r"No such process|Bad address") as error:
        other_memory.read(pid, at, 1)
    assert error.value.errno == number


def test_pieces_are_written_each_to_its_place() -> None:
    here, there = np.arange(64, dtype=np.uint8), np.zeros(64, dtype=np.uint8)
    starts = np.array([0, 32], dtype=np.int64)
    copies = CopyTable(address(here) + starts, address(there) + starts[::-1], np.array([4, 8]))
    assert other_memory.write(os.getpid(), *other_memory.spans(copies)) == 12
    assert there[32:36].tolist() == [0, 1, 2, 3]
    assert there[:8].tolist() == list(range(32, 40))
    assert np.count_nonzero(there) == 11
