"""Another process's memory on this host: ``process_vm_readv`` and ``process_vm_writev``.

The kernel asks for what a debugger would need: the same user, or CAP_SYS_PTRACE. A call copies
while it lasts and leaves nothing behind: when it has returned, no byte of it is on its way.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from daemons.transfer.backend import CopyTable

SPANS = 1024  # the kernel's limit of pieces in one call, UIO_MAXIOV
CALL_BYTES = 64 << 20  # of one call, so that a long write can be seen and stopped

Spans = npt.NDArray[np.uint64]

_libc = ctypes.CDLL(None, use_errno=True)


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_ulong), ("bytes", ctypes.c_ulong))


def _call(name: str) -> Any:
    function = getattr(_libc, name)
    size, pointer = ctypes.c_ulong, ctypes.c_void_p
    function.argtypes = [ctypes.c_int, pointer, size, pointer, size, size]
    function.restype = ctypes.c_ssize_t
    return function


_readv, _writev = _call("process_vm_readv"), _call("process_vm_writev")


def read(pid: int, address: int, length: int) -> bytes:
    """Return bytes of another process.

    Raises:
        OSError: ESRCH no such process, EPERM not ours to read, EFAULT no such memory.
    """
    buffer = ctypes.create_string_buffer(length)
    here, there = _Span(ctypes.addressof(buffer), length), _Span(address, length)
    if _checked(_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)) != length:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return buffer.raw


def spans(copies: CopyTable) -> tuple[Spans, Spans]:
    """Return where the copies lie here and there, ``[copies, 2]``: address and length."""
    both = np.empty((2, len(copies), 2), dtype=np.uint64)
    both[0, :, 0] = copies.source
    both[1, :, 0] = copies.target
    both[:, :, 1] = copies.bytes
    return both[0], both[1]


def write(pid: int, here: Spans, there: Spans) -> int:
    """Copy pieces to another process and return how many bytes were; fewer after a bad address.

    Args:
        pid: whose memory.
        here: pieces of ours, ``[pieces, 2]``, at most ``SPANS``.
        there: theirs, of the same lengths.

    Raises:
        OSError: ESRCH, EPERM, or EFAULT in the first piece.
    """
    to, of = there.ctypes.data, here.ctypes.data
    return _checked(_writev(pid, of, len(here), to, len(there), 0))


def _checked(moved: int) -> int:
    if moved < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return moved
