"""What went over the wire to each decode, counted by the lanes and read for the status.

Times in a queue and on the wire are histograms of all rooms together. ``share`` is the part of the
last seconds in which the lane was writing, to whatever end: near 1 the wire, or the peer, is what
rooms wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from daemons.protocol.story import StageTimes, Wire

SHARE_S = 10.0  # of which the share is told; older seconds count less and less


@dataclass(slots=True)
class Count:
    """Of one peer."""

    transport: str = ""
    bytes: int = 0
    copies: int = 0
    unmerged: int = 0
    failed: int = 0
    queued: StageTimes = field(default_factory=StageTimes)
    writing: StageTimes = field(default_factory=StageTimes)
    busy_s: float = 0.0  # of the last seconds
    of_s: float = 0.0
    seen_s: float = 0.0
    is_writing: bool = False


class WireTally:
    """Counts of all peers that were written to, by instance."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[str, Count] = {}
        self._lock = Lock()

    def wrote(
        self, peer: str, sent_bytes: int, copies: int, unmerged: int, took_s: float, transport: str
    ) -> None:
        """Count a write; ``unmerged`` copies it would have been, page by page."""
        with self._lock:
            count = self._count(peer)
            count.transport = transport or count.transport
            count.bytes += sent_bytes
            count.copies += copies
            count.unmerged += unmerged
            count.writing = count.writing.with_one(took_s)

    @contextmanager
    def busy(self, peer: str) -> Iterator[None]:
        """Count the time of a write while it lasts, also of one that stands still, or fails."""
        self._turn(peer, is_writing=True)
        try:
            yield
        finally:
            self._turn(peer, is_writing=False)

    def _turn(self, peer: str, *, is_writing: bool) -> None:
        with self._lock:
            count = self._count(peer)
            self._age(count)
            count.is_writing = is_writing

    def waited(self, peer: str, waited_s: float) -> None:
        """Count how long a write that could have begun stood behind others."""
        with self._lock:
            count = self._count(peer)
            count.queued = count.queued.with_one(max(0.0, waited_s))

    def failed(self, peer: str) -> None:
        """Count a write that did not land."""
        with self._lock:
            self._count(peer).failed += 1

    def wires(self) -> dict[str, Wire]:
        """Return the counts as they are told."""
        with self._lock:
            for count in self._counts.values():
                self._age(count)
            return {
                peer: Wire(
                    one.transport,
                    one.bytes,
                    one.copies,
                    one.unmerged,
                    one.failed,
                    round(min(1.0, one.busy_s / one.of_s), 4) if one.of_s else 0.0,
                    one.queued,
                    one.writing,
                )
                for peer, one in self._counts.items()
            }

    def _count(self, peer: str) -> Count:
        return self._counts.setdefault(peer, Count(seen_s=self._clock()))

    def _age(self, count: Count) -> None:
        now_s = self._clock()
        passed_s, count.seen_s = now_s - count.seen_s, now_s
        count.of_s += passed_s
        count.busy_s += passed_s if count.is_writing else 0.0
        while count.of_s > 2 * SHARE_S:
            count.of_s, count.busy_s = count.of_s / 2, count.busy_s / 2
