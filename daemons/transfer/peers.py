"""Peers that are written to, each by something of its own that must end: an engine, an agent.

Rules:
- One write per peer at a time, so that a frozen one holds up nobody else.
- What is kept is bounded: where a new peer comes, the others that have not been used for long, or
  are known to be gone, end; the one unused longest goes first. A peer that is being written to
  stays.
- A peer that was forgotten between look-up and lock is looked up again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock
from time import monotonic
from typing import Generic, TypeVar

LIMIT = 128  # peers; each may hold threads and descriptors
PROBE_AFTER_S = 5.0  # a peer unused for so long may be gone
IDLE_S = 600.0  # unused for so long, it ends: a peer that died is not told of here

Way = TypeVar("Way")


@dataclass(slots=True)
class Peer(Generic[Way]):
    """A session that is written to, and what it is written by while there is such a thing."""

    session: str
    way: Way | None = None
    lock: Lock = field(default_factory=Lock)
    used_s: float = field(default_factory=monotonic)  # when the last write began


class Peers(Generic[Way]):
    """A table of peers.

    Attributes:
        closing: set when a write under way is to be cut.
    """

    def __init__(
        self, end: Callable[[Peer[Way]], None], is_gone: Callable[[str], bool] = lambda _: False
    ) -> None:
        """Hold nobody yet.

        Args:
            end: ends a peer's way, and sets it to None; the peer's lock is held.
            is_gone: says of a session that nobody is there any more; asked of unused ones only.
        """
        self._end = end
        self._is_gone = is_gone
        self._known: OrderedDict[str, Peer[Way]] = OrderedDict()
        self._lock = Lock()
        self.closing = Event()

    def __contains__(self, session: str) -> bool:
        """Say whether it is written to."""
        return session in self._known

    def all(self) -> list[Peer[Way]]:
        """Return all of them, the one unused longest first."""
        with self._lock:
            return list(self._known.values())

    @contextmanager
    def held(self, session: str) -> Iterator[Peer[Way]]:
        """Have a peer to oneself, for one write.

        Raises:
            AssertionError: all is closed.
        """
        while True:
            peer = self._met(session)
            with peer.lock:
                if self.closing.is_set():
                    raise AssertionError("a write after close")
                if self._known.get(session) is peer:
                    yield peer
                    return

    def forget(self, peer: Peer[Way]) -> None:
        """End a peer's way and keep nothing of it; its lock is held."""
        with self._lock:
            if self._known.get(peer.session) is peer:
                del self._known[peer.session]
        if peer.way is not None:
            self._end(peer)

    def close(self) -> list[Way]:
        """Cut what is being written, and return all ways, which the caller ends."""
        self.closing.set()
        with self._lock:
            peers = list(self._known.values())
            self._known.clear()
        ways = []
        for peer in peers:
            with peer.lock:
                if peer.way is not None:
                    ways.append(peer.way)
                    peer.way = None
        return ways

    def _met(self, session: str) -> Peer[Way]:
        with self._lock:
            is_new = session not in self._known
            peer = self._known.setdefault(session, Peer(session))
            peer.used_s = monotonic()
            self._known.move_to_end(session)
            others = list(self._known.values())[:-1] if is_new else []
        for old in self._spare(others):
            if old.lock.acquire(blocking=False):
                try:
                    self.forget(old)
                finally:
                    old.lock.release()
        return peer

    def _spare(self, others: Sequence[Peer[Way]]) -> list[Peer[Way]]:
        """Return who is not worth being kept, of the ``others`` of a new one."""
        now_s = monotonic()
        spare = []
        for left, peer in zip(range(len(others), 0, -1), others, strict=True):
            unused_s = now_s - peer.used_s
            is_over = unused_s > IDLE_S or left >= LIMIT
            if is_over or (unused_s > PROBE_AFTER_S and self._is_gone(peer.session)):
                spare.append(peer)
        return spare
