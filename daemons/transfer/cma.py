"""Between processes of one host: the writer copies straight into the peer's memory.

Rules:
- Whether a peer can be reached is found out by reading its notice, not by looking at settings.
- The writer checks every copy against the regions that the peer shows, as the peer's own engine
  would, and looks again before each call of at most ``CALL_BYTES``: a peer that closes gets no
  more than the call that was under way.
- A cut is settled: there is no socket, nothing of a write that has returned is on its way. A
  frozen peer takes bytes like a running one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Condition

import numpy as np

from daemons.cluster.errors import OperatorError
from daemons.transfer import notice, other_memory
from daemons.transfer.backend import Copies, CopyTable, PeerGone, Region, WriteCut, table
from daemons.transfer.config import TransferConfig
from daemons.transfer.memory import Registered
from daemons.transfer.notice import Address, Notice, NotThere
from daemons.transfer.other_memory import CALL_BYTES, SPANS
from daemons.transfer.sessions import part

NAME = "cma"
PEERS_LIMIT = 1024  # whose regions are remembered; one costs a few hundred bytes


def create(config: TransferConfig, host: str) -> Cma:
    """Make a session of this process; ``config`` and ``host`` have nothing to say.

    Raises:
        OperatorError: this system forbids a process to reach even itself.
    """
    cma = Cma()
    if why := cma.trouble(cma.session):
        raise OperatorError(
            f"cross-memory writes do not work here: {why}",
            "transfer.backend: mooncake needs no such permission; pdctl doctor looks into it",
        )
    return cma


class Cma:
    """See ``TransferBackend``."""

    def __init__(self) -> None:
        self._memory = Registered()
        self._notice = Notice()
        self._known: OrderedDict[str, tuple[Address, tuple[Region, ...], Registered]] = (
            OrderedDict()
        )
        self._writing = 0
        self._closed = False
        self._lock = Condition()

    @property
    def session(self) -> str:
        return str(self._notice.address)

    @property
    def transport(self) -> str:
        return NAME

    def transport_to(self, peer: str) -> str:
        return NAME if part(peer, NAME) in self._known else ""

    def register(self, regions: Sequence[Region]) -> None:
        pid = self._notice.address.pid
        for region in regions:
            try:
                other_memory.read(pid, region.address, 1)
            except OSError as error:
                raise OperatorError(
                    f"memory at {region.address:#x} is not the host's: {error.strerror}",
                    "transfer.backend: mooncake reaches a GPU's memory, cma does not",
                ) from error
        with self._lock:
            self._memory.add(regions)
            self._notice.show(self._memory.regions)

    def trouble(self, peer: str) -> str:
        """Return why this peer cannot be written to from here, "" when it can; asks the peer."""
        address = notice.parse(part(peer, NAME))
        if address is None:
            return "its session has no part for cma"
        try:
            if notice.this_host() == address.host and notice.started(address.pid) != address.start:
                return f"process {address.pid} is another one now"
            notice.read(address)
        except OSError:
            return f"process {address.pid} is not there"
        except NotThere as error:
            return str(error)
        return ""

    def write(self, peer: str, copies: Copies) -> None:
        self._memory.check_sources(copies)
        if not len(copies):
            return
        with self._lock:
            if self._closed:
                raise AssertionError("a write after close")
            self._writing += 1
        try:
            self._push(part(peer, NAME), table(copies))
        finally:
            with self._lock:
                self._writing -= 1
                self._lock.notify_all()

    def close(self) -> None:
        self._notice.wipe()
        with self._lock:
            self._closed = True  # a write under way is cut before its next call
            self._lock.wait_for(lambda: self._writing == 0)
            self._memory = Registered()
            self._known.clear()

    def _push(self, session: str, copies: CopyTable) -> None:
        try:
            address, theirs = self._look(session)
        except NotThere as error:
            raise PeerGone(f"{session}: {error}") from error
        self._check_targets(theirs, copies, session)
        here, there = other_memory.spans(copies)
        for begin, end in calls(copies):
            if begin:
                self._look_again(session)
            self._call(address, here[begin:end], there[begin:end], session)

    def _look(self, session: str) -> tuple[Address, Registered]:
        """Return whose memory it is and what of it we may write, as the peer says now.

        Raises:
            NotThere: it takes no bytes.
        """
        known = self._known.get(session)
        address = known[0] if known else notice.parse(session)
        if address is None:
            raise NotThere("this is no session of cma")
        if known is None and (why := self.trouble(session)):
            raise NotThere(why)
        try:
            regions = notice.read(address)
        except NotThere:
            with self._lock:
                self._known.pop(session, None)
            raise
        if known is None or known[1] != regions:
            theirs = Registered()
            theirs.add(regions)
            known = address, regions, theirs
        with self._lock:
            self._known[session] = known
            while len(self._known) > PEERS_LIMIT:
                self._known.popitem(last=False)
        return address, known[2]

    def _look_again(self, session: str) -> None:
        if self._closed:
            raise WriteCut(f"{session}: closed here", settled=True)
        try:
            self._look(session)
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
        address: Address, here: other_memory.Spans, there: other_memory.Spans, session: str
    ) -> None:
        """Copy one call's pieces, going on where the kernel stopped early."""
        while len(here):
            try:
                moved = other_memory.write(address.pid, here, there)
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
