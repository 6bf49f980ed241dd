"""What a process lets its neighbours on the host write, in a page of memory that they can map.

A session names the process and the page's file: ``cma2:HOST:PID:START:FILE:NONCE``. Whoever can
map the page, finds the nonce there, and sees that the process has not ended, has proven that it is
that very process, may be reached, and still takes bytes: ``close`` wipes the nonce.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from daemons.kv.shareable import shareable
from daemons.transfer.backend import Region
from daemons.transfer.deaths import Life
from daemons.transfer.shares import Mapped, Share, share_of

WORD = "cma2"  # another one when the page is laid out differently
PAGE_BYTES = 4096
_HEAD = struct.Struct("<16sQ")  # nonce, regions
_REGION = struct.Struct("<QQqQQQ")  # address, bytes; descriptor (-1: none), device, inode, offset
LIMIT = (PAGE_BYTES - _HEAD.size) // _REGION.size  # regions


Shown = tuple[Region, Share | None]
_NOWHERE = Share(-1, 0, 0, 0)


class NotThere(Exception):
    """The process of an address does not take bytes from us, with the reason.

    ``ended`` says that there is no such process any more, so nobody reaches it in any way.
    """

    def __init__(self, why: str, *, ended: bool = False) -> None:
        super().__init__(why)
        self.ended = ended


@dataclass(frozen=True, slots=True)
class Address:
    """Where a notice is."""

    host: str  # boot id and PID namespace: where a PID means the same process
    pid: int
    start: int  # clock ticks after the boot; a PID may be used again
    file: int  # the page's descriptor there
    nonce: bytes

    @property
    def is_near(self) -> bool:
        """Whether it is on this host, be it in another PID namespace."""
        return self.host.partition(".")[0] == this_host().partition(".")[0]

    def __str__(self) -> str:
        return f"{WORD}:{self.host}:{self.pid}:{self.start}:{self.file}:{self.nonce.hex()}"


def parse(session: str) -> Address | None:
    """Return the address in a session, None when it is none."""
    try:
        word, host, pid, start, file, nonce = session.split(":")
        address = Address(host, int(pid), int(start), int(file), bytes.fromhex(nonce))
    except ValueError:
        return None
    usable = word == WORD and 0 < address.pid < 1 << 31 and 0 <= address.file < 1 << 31
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


def why(error: OSError) -> str:
    """Return what the system says, without number and file; our own words as they are."""
    return str(error.strerror or error)


class Notice:
    """Our own page."""

    def __init__(self) -> None:
        """Make one.

        Raises:
            OSError: this system has no memory that others can map.
        """
        self._memory = shareable(PAGE_BYTES)
        anchor = ctypes.c_char.from_buffer(self._memory)
        share = share_of(Region(ctypes.addressof(anchor), PAGE_BYTES))
        if share is None:
            raise OSError("no memory here that another process could map")
        pid, nonce = os.getpid(), secrets.token_bytes(16)
        self.address = Address(this_host(), pid, started(pid), share.number, nonce)
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


class Reader:
    """A neighbour's notice, mapped here, and its life."""

    def __init__(self, address: Address) -> None:
        """Meet a neighbour.

        Raises:
            NotThere: it is gone, on another host, another process, or not ours to reach.
        """
        if address.host != this_host():
            here = "in another PID namespace of this host"
            raise NotThere(f"it runs {here if address.is_near else 'on another host'}")
        try:
            self.life = Life(address.pid)
            if started(address.pid) != address.start:
                raise NotThere(f"process {address.pid} is another one now", ended=True)
        except OSError as error:
            ended = isinstance(error, ProcessLookupError)  # else it may be hidden (hidepid)
            text = f"process {address.pid} is not there: {error.strerror}"
            raise NotThere(text, ended=ended) from error
        try:
            self._mapped = Mapped(address.pid, address.file, PAGE_BYTES)
        except OSError as error:
            raise NotThere(f"process {address.pid} cannot be reached: {why(error)}") from error
        self.address = address

    @property
    def mapped_at(self) -> int:
        """Where its notice is here, as long as this lives."""
        return self._mapped.address

    def shows(self, page: bytes) -> bool:
        """Say whether its notice is still as it was read, and its process is there."""
        return self._mapped.memory[: len(page)] == page and not self.life.has_ended()

    def read(self) -> bytes:
        """Return its notice as it is now, as far as it is used.

        Raises:
            NotThere: it has ended or closed.
        """
        page = self._mapped.memory[:]
        if self.life.has_ended():
            raise NotThere(f"process {self.address.pid} has ended", ended=True)
        if not page.startswith(self.address.nonce):
            raise NotThere(f"process {self.address.pid} has closed, or is another one")
        count = min(int(_HEAD.unpack_from(page)[1]), LIMIT)
        return page[: _HEAD.size + count * _REGION.size]


def shown(page: bytes) -> list[Shown]:
    """Return what a page that was read lets us write."""
    found: list[Shown] = []
    for at in range(_HEAD.size, len(page), _REGION.size):
        start, length, *where = _REGION.unpack_from(page, at)
        share = Share(*where)
        found.append((Region(start, length), share if share.number >= 0 else None))
    return found
