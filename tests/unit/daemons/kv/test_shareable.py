from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from daemons.kv.shareable import shareable


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
    memory[0] = 1
    ours = f"{address(memory):x}"
    assert not any("memfd" in line and line.startswith(ours) for line in maps())
