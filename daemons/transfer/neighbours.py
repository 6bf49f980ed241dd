"""The processes of this host that we write to: what of them we may write, and how it is reached.

A neighbour is looked at before each use and stays as it is found until its notice changes; when it
is gone, or has ended, it is forgotten, and what was mapped of it with the last use.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

import numpy as np

from daemons.transfer import notice
from daemons.transfer.backend import Comb, Integers
from daemons.transfer.deaths import Deaths
from daemons.transfer.memory import Registered
from daemons.transfer.notice import Address, NotThere
from daemons.transfer.shares import Mapped

LIMIT = 1024  # that are remembered; one costs some kilobytes, and addresses for what is mapped


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process, as its notice says.

    Attributes:
        address: where its notice is.
        page: the notice.
        memory: what of it we may write.
        shifts: from an address there to the same byte here, for each region; 0: it is not mapped.
        mapped: what the shifts lead to.
    """

    address: Address
    page: bytes
    memory: Registered
    shifts: Integers
    mapped: tuple[Mapped, ...]

    def mapped_at(self, comb: Comb) -> Comb | None:
        """Return a comb with its target in our memory; None when it is not all mapped."""
        index = self.memory.region_of(comb.target, comb.length, comb.teeth, comb.target_step)
        shift = int(self.shifts[index]) if index >= 0 else 0
        return comb._replace(target=comb.target + shift) if shift else None


class Neighbours:
    """All that we have written to."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Neighbour] = OrderedDict()
        self._deaths = Deaths()
        self._lock = Lock()

    def get(self, session: str) -> Neighbour | None:
        """Return a neighbour as it was last found."""
        return self._known.get(session)

    def look(self, session: str) -> Neighbour:
        """Return a neighbour as it is now.

        Raises:
            NotThere: it takes no bytes.
        """
        known = self._known.get(session)
        try:
            if known is not None and notice.read(known.address, len(known.page)) == known.page:
                return known
            address = known.address if known else met(session)
            page = notice.read(address)
        except NotThere:
            self.forget(session)
            raise
        known = _found(address, page)
        with self._lock:
            self._known[session] = known
            while len(self._known) > LIMIT:
                self._known.popitem(last=False)
        if known.mapped:
            self._watch(session, address)
        return known

    def forget(self, session: str) -> None:
        """Keep nothing of it."""
        with self._lock:
            self._known.pop(session, None)

    def close(self) -> None:
        """Forget all. Once."""
        self._deaths.close()
        with self._lock:
            self._known.clear()

    def _watch(self, session: str, address: Address) -> None:
        try:
            self._deaths.watch(address.pid, lambda: self.forget(session))
        except OSError:  # it has ended meanwhile
            self.forget(session)


def met(session: str) -> Address:
    """Return the address in a session, once its process has been found to be the same.

    Raises:
        NotThere: it is not.
    """
    address = notice.parse(session)
    if address is None:
        raise NotThere("this is no session of cma")
    try:
        if notice.this_host() == address.host and notice.started(address.pid) != address.start:
            raise NotThere(f"process {address.pid} is another one now")
    except OSError as error:
        raise NotThere(f"process {address.pid} is not there") from error
    return address


def _found(address: Address, page: bytes) -> Neighbour:
    shown = sorted(notice.shown(page))
    memory = Registered()
    memory.add(region for region, _ in shown)
    lengths: dict[tuple[int, int], int] = {}  # of files, as far as anything is in them
    for region, share in shown:
        if share is not None:
            file = share.device, share.inode
            lengths[file] = max(lengths.get(file, 0), share.offset + region.bytes)
    files: dict[tuple[int, int], Mapped] = {}
    shifts = np.zeros(len(shown), dtype=np.int64)
    for index, (region, share) in enumerate(shown):
        if share is None:
            continue
        file = share.device, share.inode
        with suppress(OSError):  # not for us: its memory can be written all the same
            if file not in files:
                files[file] = Mapped(address.pid, share, lengths[file])
            shifts[index] = files[file].address + share.offset - region.address
    return Neighbour(address, page, memory, shifts, tuple(files.values()))
