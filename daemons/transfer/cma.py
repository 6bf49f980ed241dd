"""Between processes of one host: the writer copies straight into the peer's memory.

Memory that the peer has in a file (``shares.py``) is mapped here and copied to like our own, which
is ``shm``: by the compiled copier where it was built, else by numpy. The rest goes through the
kernel page by page, which is ``cma`` proper and costs more for small pieces.

Rules:
- Whether a peer can be reached is found out by reading its notice, not by looking at settings.
- The writer checks every copy against the regions that the peer shows, as the peer's own engine
  would, and looks again before each call of at most ``CALL_BYTES``: a peer that closes gets no
  more than the call that was under way. After a copy into mapped memory it looks once more, for
  there a dead peer's memory takes bytes like a living one's.
- A cut is settled: there is no socket, nothing of a write that has returned is on its way. A
  frozen peer takes bytes like a running one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from threading import Condition

import numpy as np

from daemons.cluster.errors import OperatorError
from daemons.transfer import notice, other_memory
from daemons.transfer.backend import Comb, Copies, CopyTable, PeerGone, Region, WriteCut, table
from daemons.transfer.combs import combs, copy
from daemons.transfer.config import TransferConfig
from daemons.transfer.memory import Registered
from daemons.transfer.native.mover import Laid, Moved, Mover, mover
from daemons.transfer.neighbours import Neighbour, Neighbours
from daemons.transfer.notice import Notice, NotThere, Shown
from daemons.transfer.other_memory import CALL_BYTES, SPANS
from daemons.transfer.sessions import part
from daemons.transfer.shares import share_of

NAME = "cma"
MAPPED = "shm"  # the transport to a peer whose pool is mapped
LEAST_BYTES = 4096  # of a comb; below, the kernel is faster at going through them one by one
TRIES = 3  # of the copier, which wants a peer to show the same until a write has ended


def create(config: TransferConfig, host: str) -> Cma:
    """Make a session of this process; ``config`` and ``host`` have nothing to say.

    Raises:
        OperatorError: this system forbids a process to reach even itself.
    """
    try:
        cma = Cma()
    except OSError as error:
        raise _unusable(str(error)) from error
    if why := cma.trouble(cma.session):
        cma.close()
        raise _unusable(why)
    return cma


def _unusable(why: str) -> OperatorError:
    return OperatorError(
        f"memory of other processes cannot be reached here: {why}",
        "transfer.backend: mooncake needs no such permission; pdctl doctor looks into it",
    )


def is_neighbour(peer: str) -> bool:
    """Say whether a peer's session has a part for cma, and is of a process on this host."""
    address = notice.parse(part(peer, NAME))
    return address is not None and address.is_near


class Cma:
    """See ``TransferBackend``."""

    def __init__(self) -> None:
        self._memory = Registered()
        self._laid = Laid(self._memory)
        self._mover = mover()
        self._notice = Notice()
        self._shown: list[Shown] = []
        self._neighbours = Neighbours()
        self._writing = 0
        self._end = ctypes.c_int32()  # not 0: closed, which the copier sees too
        self._end_at = ctypes.addressof(self._end)
        self._lock = Condition()

    @property
    def _closed(self) -> bool:
        return bool(self._end.value)

    @property
    def session(self) -> str:
        return str(self._notice.address)

    @property
    def transport(self) -> str:
        return f"{MAPPED} or {NAME}"

    def transport_to(self, peer: str) -> str:
        known = self._neighbours.get(part(peer, NAME))
        if known is None:
            return ""
        return MAPPED if known.mapped else NAME

    def register(self, regions: Sequence[Region]) -> None:
        shown = [(region, share_of(region)) for region in regions]
        for region, share in shown:
            if share is None:
                self._check(region)
        with self._lock:
            self._memory.add(regions)
            self._laid = Laid(self._memory)
            self._shown += shown
            self._notice.show(self._shown)

    def _check(self, region: Region) -> None:
        try:
            other_memory.read(self._notice.address.pid, region.address, 1)
        except PermissionError as error:
            raise _unusable(f"in no file, and process_vm_readv: {error.strerror}") from error
        except OSError as error:
            raise OperatorError(
                f"memory at {region.address:#x} is not the host's: {error.strerror}",
                "transfer.backend: mooncake reaches a GPU's memory, cma does not",
            ) from error

    def trouble(self, peer: str) -> str:
        """Return why this peer cannot be written to from here, "" when it can; asks the peer.

        Raises:
            PeerGone: it has ended, so it cannot be written to in any other way either.
        """
        session = part(peer, NAME)
        if notice.parse(session) is None:  # of another backend, or of another version of this one
            return "it offers none"
        if self._closed:
            return "closed here"
        try:
            self._neighbours.look(session)
        except NotThere as error:
            if error.ended:
                raise PeerGone(f"{session}: {error}") from error
            return str(error)
        return ""

    def write(self, peer: str, copies: Copies) -> None:
        if not isinstance(copies, CopyTable):
            self._memory.check_sources(copies)  # numbers that no column holds
        if not len(copies):
            return
        with self._lock:
            if self._closed:
                raise AssertionError("a write after close")
            self._writing += 1
        try:
            self._write(part(peer, NAME), table(copies))
        finally:
            with self._lock:
                self._writing -= 1
                if self._end.value:  # else nobody waits
                    self._lock.notify_all()

    def close(self) -> None:
        self._notice.wipe()
        with self._lock:
            already, self._end.value = self._closed, 1  # a write under way is cut at its next call
            self._lock.wait_for(lambda: self._writing == 0)
            self._memory = Registered()
            self._laid = Laid(self._memory)
        if not already:
            self._neighbours.close()

    def _write(self, session: str, copies: CopyTable) -> None:
        if self._mover is None:
            left: Neighbour | None = self._met(session)
        else:
            left = self._moved(self._mover, session, copies)
        if left is not None:
            self._write_otherwise(left, copies, session)

    def _moved(self, mover: Mover, session: str, copies: CopyTable) -> Neighbour | None:
        """Have the copier write; return the peer when it does not: not all is mapped.

        A peer that shows something new each time gets no more tries than others: no peer holds up
        the lane that writes to it.
        """
        look = self._met
        peer = self._neighbours.get(session) or look(session)
        for _ in range(TRIES):
            match mover.move(copies, self._laid, peer.target, self._end_at, CALL_BYTES):
                case Moved.DONE:
                    return None
                case Moved.STRAY:
                    return peer
                case Moved.CHANGED | Moved.CLOSED:  # some was written: no more is it nothing
                    look = self._look_again
            peer = look(session)
        return peer

    def _met(self, session: str) -> Neighbour:
        try:
            return self._neighbours.look(session)
        except NotThere as error:
            raise PeerGone(f"{session}: {error}") from error

    def _write_otherwise(self, peer: Neighbour, copies: CopyTable, session: str) -> None:
        """Write what the copier does not: memory that is not mapped, or without a copier."""
        found = combs(copies)
        small = sum(comb.bytes for comb in found) < len(found) * LEAST_BYTES
        if (small and peer.is_open) or not self._are_sources(found):
            found = []  # too small to be worth it, or to be looked at one by one
            self._memory.check_sources(copies)
        mapped = [comb for one in found if (comb := peer.mapped_at(one)) is not None]
        if found and len(mapped) == len(found):
            self._move(mapped, session)
        else:
            self._push(peer, copies, session)

    def _are_sources(self, found: Sequence[Comb]) -> bool:
        held = (
            self._memory.region_of(comb.source, comb.length, comb.teeth, comb.source_step)
            for comb in found
        )
        return min(held) >= 0

    def _move(self, found: Sequence[Comb], session: str) -> None:
        """Copy into what is mapped here."""
        moved_bytes = 0
        for whole in found:
            for comb in whole.parts(CALL_BYTES):
                if moved_bytes and moved_bytes + comb.bytes > CALL_BYTES:
                    self._look_again(session)
                    moved_bytes = 0
                copy(comb)
                moved_bytes += comb.bytes
        self._look_again(session)

    def _push(self, peer: Neighbour, copies: CopyTable, session: str) -> None:
        """Have the kernel copy."""
        self._check_targets(peer.memory, copies, session)
        here, there = other_memory.spans(copies)
        for begin, end in calls(copies):
            if begin:
                self._look_again(session)
            self._call(peer, here[begin:end], there[begin:end], session)

    def _look_again(self, session: str) -> Neighbour:
        if self._closed:
            raise WriteCut(f"{session}: closed here", settled=True)
        try:
            return self._neighbours.look(session)
        except NotThere as error:
            raise WriteCut(f"{session}: {error}", settled=True) from error

    @staticmethod
    def _check_targets(theirs: Registered, copies: CopyTable, session: str) -> None:
        strays = theirs.strays(copies.target, copies.bytes)
        if len(strays):
            first = int(strays[0])
            where = int(copies.target[first])
            raise WriteCut(
                f"{session}: copy {first} of {len(copies)} at {where:#x} is outside the peer's"
                " memory; none was sent",
                settled=True,
            )

    @staticmethod
    def _call(
        peer: Neighbour, here: other_memory.Spans, there: other_memory.Spans, session: str
    ) -> None:
        """Copy one call's pieces, going on where the kernel stopped early."""
        while len(here):
            try:
                moved = other_memory.write(peer.reader.address.pid, here, there)
            except OSError as error:
                raise WriteCut(f"{session}: {error.strerror}", settled=True) from error
            here, there = _rest(here, moved), _rest(there, moved)


def calls(copies: CopyTable) -> list[tuple[int, int]]:
    """Return which copies go into one call: few enough, and not too many bytes.

    A single longer copy is a call of its own.
    """
    count = len(copies)
    if count <= SPANS and copies.total_bytes <= CALL_BYTES:
        return [(0, count)]
    ends = np.cumsum(copies.bytes)
    found, begin = [], 0
    while begin < count:
        before = int(ends[begin - 1]) if begin else 0
        fitting = int(np.searchsorted(ends, before + CALL_BYTES, side="right"))
        end = max(begin + 1, min(fitting, begin + SPANS, count))
        found.append((begin, end))
        begin = end
    return found


def _rest(spans: other_memory.Spans, moved: int) -> other_memory.Spans:
    """Return the pieces that are left after so many bytes."""
    ends = np.cumsum(spans[:, 1])
    first = int(np.searchsorted(ends, moved, side="right"))
    if first == len(spans):
        return spans[:0]
    left = spans[first:].copy()
    done = moved - (int(ends[first - 1]) if first else 0)
    left[0, 0] += np.uint64(done)
    left[0, 1] -= np.uint64(done)
    return left
