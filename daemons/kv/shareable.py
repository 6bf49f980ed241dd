"""Memory of this process that neighbours on the host may map, where they have the right to.

It is a file without a name: whoever may look at this process's open files may open it (the same
user, or CAP_SYS_PTRACE), and it lives on as long as somebody maps it. It never gets shorter, so
that a neighbour's access never faults.

Its pages are taken when it is made: else a neighbour that writes first would take them, out of his
control group's memory, and at a fifth of the speed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from contextlib import suppress

STEP_BYTES = 4 << 20  # of populating; meanwhile no thread of the process can map or unmap

_MADV_POPULATE_WRITE = 23  # since Linux 5.14
_MFD_NOEXEC_SEAL = 8  # since Linux 6.3, where a host may insist on it
_FLAGS = (os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)

_madvise = ctypes.CDLL(None, use_errno=True).madvise  # mmap's own keeps the interpreter's lock
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def shareable(length: int) -> mmap.mmap:
    """Return ``length`` zeroed bytes on a page boundary; plain memory where there is no memfd.

    Raises:
        OSError: there is not so much memory.
    """
    file = _file(length)
    if file is None:
        return _taken(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), None)
    try:
        return _taken(mmap.mmap(file, length), file)  # it has a descriptor of its own
    finally:
        os.close(file)


def populate(memory: mmap.mmap, begin: int = 0, length: int = STEP_BYTES) -> None:
    """Put pages behind a part of some memory that may be written; what stands there stays.

    Raises:
        OSError: there is no memory; EINVAL: the kernel cannot.
    """
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _madvise(first + begin, min(length, len(memory) - begin), _MADV_POPULATE_WRITE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _taken(memory: mmap.mmap, file: int | None) -> mmap.mmap:
    with suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    try:
        for begin in range(0, len(memory), STEP_BYTES):
            populate(memory, begin)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        if file is not None:
            _allocate(file, len(memory))
    return memory


def _allocate(file: int, length: int) -> None:
    """Take a file's pages on an older kernel: small ones, which are zeroed at first use."""
    try:
        os.posix_fallocate(file, 0, length)
    except OSError as error:
        if error.errno in (errno.ENOMEM, errno.ENOSPC):
            raise


def _file(length: int) -> int | None:
    for flags in _FLAGS:
        try:
            file = os.memfd_create("pd", flags)
        except OSError:
            continue
        try:
            os.ftruncate(file, length)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        except OSError:
            os.close(file)
            continue
        return file
    return None
