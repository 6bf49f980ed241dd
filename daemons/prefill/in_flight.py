"""How many bytes all lanes together have under way.

Nobody waits for another's bytes: where the total is used up a lane still gets a small piece. So
what is under way is at most the total and one small piece per peer, and a slow peer holds back
only its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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

    @contextmanager
    def held(self, wanted_bytes: int) -> Iterator[int]:
        """Hold as many of ``wanted_bytes`` as may be written at once; at least a small piece.

        They are counted from when they are granted, so that no two lanes are granted the same.
        """
        with self._lock:
            left_bytes = self._total_bytes - self._bytes
            count = min(wanted_bytes, max(SMALL_BYTES, left_bytes))
            self._bytes += count
        try:
            yield count
        finally:  # they have landed, or never will
            with self._lock:
                self._bytes -= count
