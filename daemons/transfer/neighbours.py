"""The processes of this host that we write to: what of them we may write, and how it is reached.

A neighbour is looked at before each use and stays as it is found until its notice changes; when it
is gone, or has ended, it is forgotten, and what was mapped of it with the last use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from threading import Lock

import numpy as np

from daemons.transfer import notice, other_memory
from daemons.transfer.backend import Comb, Integers, Region
from daemons.transfer.deaths import Deaths
from daemons.transfer.memory import Registered
from daemons.transfer.native.mover import Laid, Target
from daemons.transfer.notice import Address, NotThere, Reader
from daemons.transfer.shares import File, Mapped

LIMIT = 1024  # that are remembered; one costs some kilobytes, and addresses for what is mapped


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process, as its notice says.

    Attributes:
        reader: what its notice is read by.
        page: the notice, as it was found.
        memory: what of it we may write.
        shifts: from an address there to the same byte here, for each region; 0: it is not mapped.
        mapped: what the shifts lead to.
        is_open: whether the kernel copies into its memory for us.
        target: the same for the compiled copier.
    """

    reader: Reader
    page: bytes
    memory: Registered
    shifts: Integers
    mapped: tuple[Mapped, ...]
    is_open: bool
    target: Target

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
            if known is not None and known.reader.shows(known.page):
                return known
            reader = known.reader if known else Reader(met(session))
            found = _found(reader, reader.read())
        except NotThere:
            self.forget(session)
            raise
        with self._lock:
            before = self._known.get(session)
            self._known[session] = found
            if before is None or before.reader is not reader:
                self._deaths.watch(reader.life, lambda: self.forget(session))
                self._drop(before)
            while len(self._known) > LIMIT:
                self._drop(self._known.popitem(last=False)[1])
        return found

    def forget(self, session: str) -> None:
        """Keep nothing of it."""
        with self._lock:
            self._drop(self._known.pop(session, None))

    def close(self) -> None:
        """Forget all. Once."""
        self._deaths.close()
        with self._lock:
            self._known.clear()

    def _drop(self, known: Neighbour | None) -> None:
        """Wait no more for the end of one that may live on for long: that keeps a file open."""
        if known is not None:
            self._deaths.unwatch(known.reader.life)


def met(session: str) -> Address:
    """Return the address in a session.

    Raises:
        NotThere: it has none.
    """
    address = notice.parse(session)
    if address is None:
        raise NotThere("this is no session of cma")
    return address


def _found(reader: Reader, page: bytes) -> Neighbour:
    """Return a neighbour with all of it mapped that can be.

    Raises:
        NotThere: it shows what no memory is, or the kernel does not let us at the rest.
    """
    pid, shown = reader.address.pid, notice.shown(page)
    shown.sort(key=itemgetter(0))
    memory = Registered()
    try:
        memory.add(region for region, _ in shown)
    except ValueError as error:
        raise NotThere(f"process {pid} shows no memory: {error}") from error
    lengths: dict[File, int] = {}  # of files, as far as anything is in them
    for region, share in shown:
        if share is not None:
            end = share.offset + region.bytes
            lengths[share.file] = max(lengths.get(share.file, 0), end)
    files: dict[File, Mapped] = {}
    shifts = np.zeros(len(shown), dtype=np.int64)
    for index, (region, share) in enumerate(shown):
        if share is not None:
            with suppress(OSError):  # then as any other memory
                if share.file not in files:
                    files[share.file] = Mapped(pid, share.number, lengths[share.file], share.file)
                    files[share.file].prepare()
                shifts[index] = files[share.file].address + share.offset - region.address
    refusal = _refusal(pid, memory.regions)
    if refusal and not shifts.all():
        raise NotThere(f"process {pid} cannot be reached: {refusal}")
    target = Target(Laid(memory, shifts), reader.mapped_at, page, reader.life.file)
    mapped = tuple(files.values())
    return Neighbour(reader, page, memory, shifts, mapped, not refusal, target)


def _refusal(pid: int, regions: Sequence[Region]) -> str:
    """Return why the kernel keeps us from a process's memory; "": it does not."""
    try:
        for region in regions[:1]:
            other_memory.read(pid, region.address, 1)
    except PermissionError as error:
        return str(error.strerror)
    except OSError:  # an address of nothing; a write to it says so
        pass
    return ""
