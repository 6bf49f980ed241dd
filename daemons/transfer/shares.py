"""Memory by its file: which of ours a neighbour could map, and a neighbour's, mapped here.

Rules:
- Ours is found in the kernel's table of mappings, so whoever allocates memory needs to know
  nothing of this: a file that can get no shorter (``daemons/kv/shareable.py`` makes such) is
  offered, anything else is not.
- A neighbour's file is opened through ``/proc/PID/fd``, by the kernel's rules of who may look at a
  process, and is mapped only when it is the very one that was offered and cannot get shorter, nor
  lacks pages as hugetlb may: an access to what we map never faults, not even when the neighbour is
  gone.
- A mapping ends with the last reference to it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from daemons.kv.shareable import STEP_BYTES, populate
from daemons.transfer.backend import Region

BLOCK_BYTES = 512  # of st_blocks

File = tuple[int, int]  # device and inode


class Share(NamedTuple):
    """Where memory lies in a file."""

    number: int  # the file's descriptor, in the process that it belongs to
    device: int
    inode: int
    offset: int

    @property
    def file(self) -> File:
        """Which file it is."""
        return self.device, self.inode


class _Line(NamedTuple):
    """A line of the table of mappings."""

    begin: int
    end: int
    rights: str
    offset: int
    file: File


def share_of(region: Region) -> Share | None:
    """Return where memory of ours can be had by neighbours, None when it cannot."""
    begin, end = region.address, region.address + region.bytes
    lines = [line for line in _table() if line.begin < end and begin < line.end]
    if not lines or not lines[0].begin <= begin < end <= lines[-1].end:
        return None
    first = lines[0]
    for line in lines:
        place = line.offset - (line.begin - first.begin)
        if (line.file, place, line.rights) != (first.file, first.offset, "rw-s"):
            return None
    return _offered(first.file, first.offset + begin - first.begin)


def _offered(file: File, offset: int) -> Share | None:
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            told = os.fstat(number)
            if (told.st_dev, told.st_ino) == file and _never_faults(number):
                return Share(number, *file, offset)
    return None


def _never_faults(file: int) -> bool:
    """Say whether it gets no shorter, and its pages are not of those that run out (hugetlb)."""
    is_ordinary = os.fstatvfs(file).f_bsize == mmap.PAGESIZE
    return is_ordinary and bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)


def _table() -> Iterator[_Line]:
    for text in Path("/proc/self/maps").read_text().splitlines():
        span, rights, offset, device, inode, *_ = text.split(maxsplit=5)
        begin, end = (int(word, 16) for word in span.split("-"))
        major, minor = (int(word, 16) for word in device.split(":"))
        yield _Line(begin, end, rights, int(offset, 16), (os.makedev(major, minor), int(inode)))


class Mapped:
    """A neighbour's file in our memory, from its beginning on.

    Attributes:
        memory: what of it is mapped.
        is_taken: whether the neighbour has taken all its pages, so that none would be ours.
    """

    def __init__(self, pid: int, number: int, length: int, file: File | None = None) -> None:
        """Map so many bytes of what has this number there; it must be ``file``, if that is known.

        Raises:
            OSError: we may not, it is not that file, or it may get shorter.
        """
        opened = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        try:
            told = os.fstat(opened)
            is_it = file is None or (told.st_dev, told.st_ino) == file
            if not is_it or told.st_size < length or not _never_faults(opened):
                raise OSError(f"file {number} of process {pid} is not what was offered")
            self.is_taken = told.st_blocks * BLOCK_BYTES >= told.st_size
            self.memory = mmap.mmap(opened, length)
        finally:
            os.close(opened)
        for advice in (mmap.MADV_DONTFORK, mmap.MADV_DONTDUMP, mmap.MADV_HUGEPAGE):
            with suppress(OSError):  # a kernel without large pages
                self.memory.madvise(advice)

    @property
    def address(self) -> int:
        """Where it begins here."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def prepare(self) -> None:
        """Let a thread put its pages into our table of pages, so that no first write faults.

        It ends with the mapping. Pages that the neighbour has not taken stay his to take.
        """
        if self.is_taken:
            memory = weakref.ref(self.memory)
            with suppress(RuntimeError):  # no thread is to be had: they fault as they are written
                Thread(target=_populate, args=(memory,), name="map", daemon=True).start()


def _populate(mapped: weakref.ref[mmap.mmap]) -> None:
    begin = 0
    while (memory := mapped()) is not None and begin < len(memory):
        try:
            populate(memory, begin)
        except OSError:  # an older kernel: they are mapped as they are written
            return
        begin += STEP_BYTES
        del memory
