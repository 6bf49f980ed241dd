"""How many bytes all lanes together have under way.

Nobody waits for another's bytes: where the total is used up a lane still gets a small piece. So
what is under way is at most the total and one small piece per peer, and a slow peer holds back
only its own.
"""

from __future__ import annotations

from threading import Lock

SMALL_BYTES = 4 << 20  # that a lane gets in any case


class InFlight:
    """Counts bytes of writes that have begun."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._bytes = 0
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        """Under way now."""
        return self._bytes

    def most(self, wanted_bytes: int) -> int:
        """Return how many of ``wanted_bytes`` may be written at once; at least a small piece."""
        return min(wanted_bytes, max(SMALL_BYTES, self._total_bytes - self._bytes))

    def begin(self, count: int) -> None:
        """Bytes are handed to the backend."""
        with self._lock:
            self._bytes += count

    def end(self, count: int) -> None:
        """They have landed, or never will."""
        with self._lock:
            self._bytes -= count
