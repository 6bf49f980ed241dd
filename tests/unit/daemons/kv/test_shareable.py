from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from daemons.kv import shareable as module
from daemons.kv.shareable import STEP_BYTES, populate, shareable


def address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def maps() -> list[str]:
    return Path("/proc/self/maps").read_text().splitlines()


def test_it_is_zeroed_and_begins_on_a_page() -> None:
    memory = shareable(3 * mmap.PAGESIZE)
    assert memory[:] == bytes(3 * mmap.PAGESIZE)
    assert address(memory) % mmap.PAGESIZE == 0


def test_its_file_can_be_opened_and_gets_no_shorter() -> None:
    memory = shareable(mmap.PAGESIZE)
    memory[0] = 7
    inode = next(line.split()[4] for line in maps() if line.startswith(f"{address(memory):x}-"))
    number = next(n for n in map(int, os.listdir("/proc/self/fd")) if has(n, inode))
    file = os.open(f"/proc/self/fd/{number}", os.O_RDWR)
    try:
        assert os.pread(file, 1, 0) == b"\x07"
        assert fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        with pytest.raises(PermissionError):
            os.ftruncate(file, 0)
    finally:
        os.close(file)


def has(number: int, inode: str) -> bool:
    try:
        return os.fstat(number).st_ino == int(inode)
    except OSError:
        return False


def taken_bytes(memory: mmap.mmap) -> int:
    """Return how much of it has pages of ours."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    assert any(line.startswith(f"{address(memory):x}-") for line in lines)
    return int(next(line for line in lines if line.startswith("Rss:")).split()[1]) << 10


@pytest.mark.parametrize("length", [mmap.PAGESIZE, STEP_BYTES + 3 * mmap.PAGESIZE])
def test_all_of_it_is_taken_before_anybody_writes(length: int) -> None:
    assert taken_bytes(shareable(length)) == length


def refusing(number: int) -> object:
    def madvise(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    return madvise


def file_bytes(memory: mmap.mmap) -> int:
    inode = next(line.split()[4] for line in maps() if line.startswith(f"{address(memory):x}-"))
    number = next(n for n in map(int, os.listdir("/proc/self/fd")) if has(n, inode))
    return os.fstat(number).st_blocks * 512


def test_an_older_kernel_takes_it_by_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_madvise", refusing(errno.EINVAL))
    memory = shareable(3 * mmap.PAGESIZE)
    assert taken_bytes(memory) == 0  # mapped where it is used
    assert file_bytes(memory) == 3 * mmap.PAGESIZE


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_a_kernel_that_takes_nothing_in_advance_is_no_hindrance_but_want_of_memory_is(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(file: int, begin: int, length: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, "_madvise", refusing(errno.EINVAL))
    monkeypatch.setattr(os, "posix_fallocate", refused)
    if number == errno.ENOSPC:
        with pytest.raises(OSError, match="No space left"):
            shareable(mmap.PAGESIZE)
    else:
        assert file_bytes(shareable(mmap.PAGESIZE)) == 0


def test_memory_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_madvise", refusing(errno.ENOMEM))
    with pytest.raises(OSError, match="Cannot allocate"):
        shareable(mmap.PAGESIZE)


def test_what_stands_in_memory_stays_when_it_is_populated() -> None:
    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    memory[5] = 7
    populate(memory, 0, mmap.PAGESIZE)
    populate(memory, 2 * mmap.PAGESIZE)  # to the end
    assert memory[5] == 7
    assert taken_bytes(memory) == 3 * mmap.PAGESIZE


def test_a_kernel_that_knows_no_seal_against_execution_makes_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    make = os.memfd_create

    def older(name: str, flags: int) -> int:
        asked.append(flags)
        if flags & 8:
            raise OSError(errno.EINVAL, "what flag?")
        return make(name, flags)

    monkeypatch.setattr(os, "memfd_create", older)
    memory = shareable(mmap.PAGESIZE)
    (line,) = [line for line in maps() if line.startswith(f"{address(memory):x}-")]
    assert "memfd:pd" in line
    assert len(asked) == 2


def test_a_child_inherits_no_descriptor_of_it() -> None:
    memory = shareable(mmap.PAGESIZE)
    shared = [n for n in map(int, os.listdir("/proc/self/fd")) if is_ours(n)]
    assert memory
    assert shared
    assert not any(os.get_inheritable(n) for n in shared)


def is_ours(number: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{number}").startswith("/memfd:pd")
    except OSError:
        return False


def test_without_such_files_it_is_plain_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, flags: int) -> int:
        raise OSError("none here")

    monkeypatch.setattr(os, "memfd_create", refused)
    memory = shareable(mmap.PAGESIZE)
    assert taken_bytes(memory) == mmap.PAGESIZE
    memory[0] = 1
    ours = f"{address(memory):x}"
    assert not any("memfd" in line and line.startswith(ours) for line in maps())
