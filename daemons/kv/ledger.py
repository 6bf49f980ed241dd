"""Who owns each page (or metadata row): exactly one owner at any time.

free | cached | request | writer | quarantined; the sum is the pool. Memory that a peer may still
write (``writer``, ``quarantined``) is never free: it becomes so only by a step that names why the
writer is known to be done. Every step names the room and the owner it leaves; a wrong one raises.

A cached page is nobody's and is written by nobody. Rooms may read it, each of them counted once;
it is free only when nobody does. What is cached and unread may be had as well as what is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

from daemons.kv.runs import FreeRuns
from daemons.protocol.ids import RoomKey


class Owner(StrEnum):
    """The five kinds of owner."""

    FREE = "free"
    CACHED = "cached"  # computed, kept for reuse, nobody's; rooms may read it
    REQUEST = "request"  # read and written by our own engine for one room
    WRITER = "writer"  # offered to a peer, which may write it now
    QUARANTINED = "quarantined"  # the room is gone, the peer may still write


class OutOfPages(Exception):
    """Fewer are free than were asked for; expected, the room waits."""


class WrongOwner(AssertionError):
    """A step that does not start from the page's owner: a defect of ours."""


_MAY_LEAD_TO = {
    Owner.FREE: {Owner.REQUEST, Owner.WRITER},
    Owner.CACHED: {Owner.FREE},
    Owner.REQUEST: {Owner.FREE, Owner.CACHED},
    Owner.WRITER: {Owner.REQUEST, Owner.QUARANTINED, Owner.FREE},
    Owner.QUARANTINED: {Owner.FREE},
}


class Ledger:
    """Owners of the indices ``0 .. size - 1``."""

    def __init__(self, size: int, name: str = "page") -> None:
        self.size = size
        self._name = name
        self._owner = [Owner.FREE] * size
        self._holder: list[RoomKey | None] = [None] * size
        self._free = FreeRuns(size)
        self._counts = dict.fromkeys(Owner, 0)
        self._counts[Owner.FREE] = size
        self._readers: dict[int, list[RoomKey]] = {}  # of cached ones that are read
        self.reclaim: Callable[[int], None] = lambda count: None  # makes cached ones free

    @property
    def free(self) -> int:
        """How many are free now."""
        return self._counts[Owner.FREE]

    @property
    def read(self) -> int:
        """How many are cached and read by somebody."""
        return len(self._readers)

    @property
    def available(self) -> int:
        """How many ``take`` can give: those that are free, and those cached that nobody reads."""
        return self.free + self._counts[Owner.CACHED] - self.read

    def counts(self) -> dict[str, int]:
        """Return how many each kind of owner has; the sum is ``size``."""
        return {owner.value: count for owner, count in self._counts.items()}

    def owner(self, index: int) -> tuple[Owner, RoomKey | None]:
        """Return who owns ``index``."""
        return self._owner[index], self._holder[index]

    def take(self, key: RoomKey, count: int, owner: Owner) -> tuple[int, ...]:
        """Give ``count`` free ones to ``key``, neighbours where possible.

        Raises:
            OutOfPages: fewer are available; nothing was taken.
        """
        if count > self.available:
            raise OutOfPages(f"{count} {self._name}s wanted, {self.available} free")
        if count > self.free:
            self.reclaim(count - self.free)
        taken = self._free.take(count)
        for index in taken:
            self._set(index, key, Owner.FREE, owner)
        return taken

    def move(self, key: RoomKey, indices: Iterable[int], was: Owner, now: Owner) -> None:
        """Hand ``indices`` of ``key`` from one kind of owner to another.

        Raises:
            WrongOwner: one of them was not ``key``'s as ``was``, or the step is not allowed.
        """
        for index in indices:
            self._set(index, key, was, now)

    def release(self, key: RoomKey, indices: Iterable[int], was: Owner) -> None:
        """Make ``indices`` of ``key`` free."""
        given = tuple(indices)
        self.move(key, given, was, Owner.FREE)
        self._free.give(given)

    def readers(self, index: int) -> tuple[RoomKey, ...]:
        """Return the rooms that read a cached one."""
        return tuple(self._readers.get(index, ()))

    def read_by(self, key: RoomKey, index: int) -> None:
        """Note that ``key`` reads a cached one, which is not free before it has stopped.

        Raises:
            WrongOwner: it is not cached, or ``key`` reads it already.
        """
        if self._owner[index] is not Owner.CACHED or key in self.readers(index):
            raise WrongOwner(f"{self._name} {index} of {self.owner(index)} is not {key}'s to read")
        self._readers.setdefault(index, []).append(key)

    def left_by(self, key: RoomKey, index: int) -> bool:
        """Note that ``key`` reads a cached one no more, and say whether now nobody does.

        Raises:
            WrongOwner: ``key`` did not read it.
        """
        readers = self._readers.get(index, [])
        if key not in readers:
            raise WrongOwner(f"{self._name} {index} is read by {readers}, not by {key}")
        readers.remove(key)
        if not readers:
            del self._readers[index]
        return not readers

    def evict(self, index: int) -> None:
        """Make a cached one free that nobody reads."""
        self._set(index, None, Owner.CACHED, Owner.FREE)
        self._free.give((index,))

    def check(self) -> None:
        """Raise WrongOwner unless the sums are right and free means nobody's."""
        for owner, count in self._counts.items():
            held = self._owner.count(owner)
            if held != count:
                raise WrongOwner(f"{count} {self._name}s counted as {owner}, {held} are")
        free = [
            index for start, length in self._free.runs() for index in range(start, start + length)
        ]
        if len(free) != self.free or len(self._free) != self.free:
            raise WrongOwner(f"{len(free)} {self._name}s in runs, {self.free} counted free")
        for index in free:
            if self._owner[index] is not Owner.FREE:
                raise WrongOwner(
                    f"{self._name} {index} is in the runs, its owner {self.owner(index)}"
                )
        nobodys = self._counts[Owner.FREE] + self._counts[Owner.CACHED]
        if self._holder.count(None) != nobodys:
            raise WrongOwner(f"{nobodys} {self._name}s are free or cached, others have no holder")
        for index, readers in self._readers.items():
            if self._owner[index] is not Owner.CACHED or not readers:
                raise WrongOwner(f"{self._name} {index} of {self.owner(index)} has {readers}")

    def _set(self, index: int, key: RoomKey | None, was: Owner, now: Owner) -> None:
        owner, holder = self._owner[index], self._holder[index]
        expected = None if was in (Owner.FREE, Owner.CACHED) else key
        if owner is not was or holder != expected or now not in _MAY_LEAD_TO[was]:
            raise WrongOwner(
                f"{self._name} {index}: {owner} of {holder}, asked from {was} to {now} for {key}"
            )
        if was is Owner.CACHED and index in self._readers:
            raise WrongOwner(f"{self._name} {index} is read by {self._readers[index]}")
        self._owner[index] = now
        self._holder[index] = None if now in (Owner.FREE, Owner.CACHED) else key
        self._counts[was] -= 1
        self._counts[now] += 1
