"""The number of a process's life: grows from start to start, so the newer one is known."""

from __future__ import annotations

import time


def new_epoch() -> int:
    """Return the epoch of a process that starts now: Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
