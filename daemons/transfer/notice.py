"""What a process lets its neighbours on the host write, in a page of memory that they can read.

A session names the process and the page: ``cma2:HOST:PID:START:ADDRESS:NONCE``. Whoever can read
the page and finds the nonce there has proven, with one call, that the process lives, is that very
process, may be reached, and still takes bytes: ``close`` wipes the nonce.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from daemons.transfer import other_memory
from daemons.transfer.backend import Region
from daemons.transfer.shares import Share

WORD = "cma2"  # another one when the page is laid out differently
PAGE_BYTES = 4096
_HEAD = struct.Struct("<16sQ")  # nonce, regions
_REGION = struct.Struct("<QQqQQQ")  # address, bytes; descriptor (-1: none), device, inode, offset
LIMIT = (PAGE_BYTES - _HEAD.size) // _REGION.size  # regions


Shown = tuple[Region, Share | None]
_NOWHERE = Share(-1, 0, 0, 0)


class NotThere(Exception):
    """The process of an address does not take bytes from us, with the reason."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a notice is."""

    host: str  # boot id and PID namespace: where a PID means the same process
    pid: int
    start: int  # clock ticks after the boot; a PID may be used again
    page: int
    nonce: bytes

    def __str__(self) -> str:
        return f"{WORD}:{self.host}:{self.pid}:{self.start}:{self.page:x}:{self.nonce.hex()}"


def parse(session: str) -> Address | None:
    """Return the address in a session, None when it is none."""
    try:
        word, host, pid, start, page, nonce = session.split(":")
        address = Address(host, int(pid), int(start), int(page, 16), bytes.fromhex(nonce))
    except ValueError:
        return None
    usable = word == WORD and 0 < address.pid < 1 << 31 and 0 < address.page < 1 << 63
    return address if usable and len(address.nonce) == 16 else None


@cache
def this_host() -> str:
    """Return the word for the set of processes that see each other's PIDs."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"


def started(pid: int) -> int:
    """Return when a process began, in clock ticks after the boot.

    Raises:
        OSError: there is none.
    """
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])


class Notice:
    """Our own page."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._anchor = ctypes.c_char.from_buffer(self._memory)  # keeps the address valid
        page, pid = ctypes.addressof(self._anchor), os.getpid()
        self.address = Address(this_host(), pid, started(pid), page, secrets.token_bytes(16))
        self.show([])

    def show(self, regions: Sequence[Shown]) -> None:
        """Let neighbours write into these from now on, each with its share if it has one.

        Raises:
            ValueError: more than ``LIMIT``.
        """
        if len(regions) > LIMIT:
            raise ValueError(f"{len(regions)} regions, a notice has place for {LIMIT}")
        body = b"".join(_REGION.pack(*region, *(share or _NOWHERE)) for region, share in regions)
        self._memory[_HEAD.size : _HEAD.size + len(body)] = body
        self._memory[: _HEAD.size] = _HEAD.pack(self.address.nonce, len(regions))  # counted last

    def wipe(self) -> None:
        """Take no more bytes."""
        self._memory[:] = bytes(PAGE_BYTES)


def read(address: Address, length: int = PAGE_BYTES) -> bytes:
    """Return a neighbour's page as it is now, or the beginning of it, as far as it is used.

    Raises:
        NotThere: it is gone, closed, on another host, or not ours to reach.
    """
    if address.host != this_host():
        raise NotThere("it runs on another host, or in another PID namespace")
    try:
        page = other_memory.read(address.pid, address.page, length)
    except OSError as error:
        raise NotThere(f"process {address.pid} cannot be reached: {error.strerror}") from error
    if not page.startswith(address.nonce):
        raise NotThere(f"process {address.pid} has closed, or is another one")
    return page[: _HEAD.size + _count(page) * _REGION.size]


def shown(page: bytes) -> list[Shown]:
    """Return what a page that was read lets us write."""
    found: list[Shown] = []
    for at in range(_HEAD.size, len(page), _REGION.size):
        start, length, *where = _REGION.unpack_from(page, at)
        share = Share(*where)
        found.append((Region(start, length), share if share.file >= 0 else None))
    return found


def _count(page: bytes) -> int:
    return min(int(_HEAD.unpack_from(page)[1]), LIMIT)
