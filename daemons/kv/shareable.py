"""Memory of this process that neighbours on the host may map, where they have the right to.

It is a file without a name: whoever may look at this process's open files may open it (the same
user, or CAP_SYS_PTRACE), and it lives on as long as somebody maps it. It never gets shorter, so
that a neighbour's access never faults.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress


def shareable(length: int) -> mmap.mmap:
    """Return ``length`` zeroed bytes on a page boundary; plain memory where there is no memfd."""
    memory = _memfd(length) or mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _memfd(length: int) -> mmap.mmap | None:
    try:
        file = os.memfd_create("pd", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError):
        return None
    try:
        os.ftruncate(file, length)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return mmap.mmap(file, length)  # keeps the file open by a descriptor of its own
    except OSError:
        return None
    finally:
        os.close(file)
