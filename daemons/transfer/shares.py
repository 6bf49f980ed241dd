"""Memory by its file: which of ours a neighbour could map, and a neighbour's, mapped here.

Rules:
- Ours is found in the kernel's table of mappings, so whoever allocates memory needs to know
  nothing of this: a file that can get no shorter (``daemons/kv/shareable.py`` makes such) is
  offered, anything else is not.
- A neighbour's file is opened through ``/proc/PID/fd``, by the kernel's rules of who may look at a
  process, and is mapped only when it is the very one that was offered and cannot get shorter: an
  access to what we map never faults, not even when the neighbour is gone.
- A mapping ends with the last reference to it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from daemons.transfer.backend import Region


class Share(NamedTuple):
    """Where memory lies in a file."""

    file: int  # the descriptor, in the process that it belongs to
    device: int
    inode: int
    offset: int


class _Line(NamedTuple):
    """A line of the table of mappings."""

    begin: int
    end: int
    rights: str
    offset: int
    file: tuple[int, int]  # device and inode


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


def _offered(file: tuple[int, int], offset: int) -> Share | None:
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            told = os.fstat(number)
            if (told.st_dev, told.st_ino) == file and _cannot_shrink(number):
                return Share(number, *file, offset)
    return None


def _cannot_shrink(file: int) -> bool:
    return bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)


def _table() -> Iterator[_Line]:
    for text in Path("/proc/self/maps").read_text().splitlines():
        span, rights, offset, device, inode, *_ = text.split(maxsplit=5)
        begin, end = (int(word, 16) for word in span.split("-"))
        major, minor = (int(word, 16) for word in device.split(":"))
        yield _Line(begin, end, rights, int(offset, 16), (os.makedev(major, minor), int(inode)))


class Mapped:
    """A neighbour's file in our memory.

    Attributes:
        address: where it begins here.
    """

    def __init__(self, pid: int, share: Share, length: int) -> None:
        """Map so much of it from its beginning on.

        Raises:
            OSError: we may not, it is not that file, or it may get shorter.
        """
        file = os.open(f"/proc/{pid}/fd/{share.file}", os.O_RDWR | os.O_CLOEXEC)
        try:
            told = os.fstat(file)
            is_it = (told.st_dev, told.st_ino) == (share.device, share.inode)
            if not is_it or told.st_size < length or not _cannot_shrink(file):
                raise OSError(f"file {share.file} of process {pid} is not what was offered")
            self._memory = mmap.mmap(file, length)
        finally:
            os.close(file)
        for advice in (mmap.MADV_DONTFORK, mmap.MADV_DONTDUMP, mmap.MADV_HUGEPAGE):
            with suppress(OSError):  # a kernel without large pages
                self._memory.madvise(advice)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
