"""A backend inside one process: real bytes, no network.

Sessions are found in a table of the process. A write moves its copies one by one, each under
the receiver's lock, so that ``close`` returns only when nothing writes into its memory.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Sequence
from threading import Lock

from daemons.transfer.backend import Copies, Copy, PeerGone, Region, WriteCut
from daemons.transfer.config import TransferConfig
from daemons.transfer.memory import Registered
from daemons.transfer.sessions import part

Mover = Callable[[int, int, int], object]  # target, source, bytes: as memmove

_numbers = itertools.count(1)
_sessions: dict[str, Loopback] = {}


def create(config: TransferConfig, host: str) -> Loopback:
    """Make a session of this process; ``config`` and ``host`` have nothing to say."""
    return Loopback()


class Loopback:
    """One session; see ``TransferBackend``."""

    def __init__(self, move: Mover = ctypes.memmove) -> None:
        """``move`` carries one copy; an OSError of it cuts the write."""
        self._move = move
        self._memory = Registered()
        self._open = True
        self._lock = Lock()
        self._session = f"loopback:{os.getpid()}:{next(_numbers)}"
        _sessions[self._session] = self

    @property
    def session(self) -> str:
        return self._session

    @property
    def transport(self) -> str:
        return "loopback"

    def transport_to(self, peer: str) -> str:
        return "loopback" if part(peer, "loopback") in _sessions else ""

    def register(self, regions: Sequence[Region]) -> None:
        with self._lock:
            self._memory.add(regions)

    def write(self, peer: str, copies: Copies) -> None:
        self._memory.check_sources(copies)
        receiver = _sessions.get(part(peer, "loopback"))
        if receiver is None:
            raise PeerGone(f"no session {peer} in this process")
        for index, copy in enumerate(copies):
            receiver._land(copy, self._move, f"copy {index} of {len(copies)} to {peer}")

    def close(self) -> None:
        _sessions.pop(self._session, None)
        with self._lock:
            self._memory = Registered()
            self._open = False

    def _land(self, copy: Copy, move: Mover, story: str) -> None:
        with self._lock:
            if not self._open:
                raise WriteCut(f"{story}: the session closed")
            if not self._memory.holds(copy.target, copy.bytes):
                raise WriteCut(f"{story}: {copy.target:#x} is outside the peer's memory")
            try:
                move(copy.target, copy.source, copy.bytes)
            except OSError as error:
                raise WriteCut(f"{story}: {error}") from error
