"""Writes of this process to one peer, over an engine of their own.

Rules:
- A frozen peer holds up its own engine only, and ending that engine is the fence of a cut write.
- Copies go out one by one, few at a time, and each is asked for until it is final: Mooncake's
  blocking call spins, and reports a failure while the rest of its batch still goes out.
- Opening a peer can last 60 s inside Mooncake. It runs on a thread of its own, moves no data,
  and a write waits for it no longer than for anything else.
- Where nothing has moved for a while, the connection is told to drop its unsent bytes on close,
  since Mooncake may close it at any time from then on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from threading import Event, Thread
from typing import NamedTuple

from daemons.transfer import sockets
from daemons.transfer.backend import Copies, Copy, PeerGone, WriteCut
from daemons.transfer.mooncake_engine import Engine, Sent
from daemons.transfer.mooncake_env import PORTS
from daemons.transfer.naps import Naps

PIECE_BYTES = 4 << 20  # longer copies are split, so that progress can be seen
WINDOW_BYTES = 64 << 20  # begun and not yet acknowledged
STALL_S = 0.5  # below the shortest progress timeout, 2 s


class Limits(NamedTuple):
    """What one write may use."""

    copies: int  # begun and not yet acknowledged
    timeout_s: float  # without progress


class Sender:
    """One peer's engine; one caller at a time."""

    def __init__(self, engine: Engine, session: str, limits: Limits, closing: Event) -> None:
        """``closing`` cuts a write from another thread."""
        self._engine = engine
        self._session = session
        self._limits = limits
        self._closing = closing
        self._hosts: frozenset[str] = frozenset()
        self._opened: list[bool] = []
        self._opener: Thread | None = None

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def opening(self) -> bool:
        """Whether Mooncake still waits for the peer's first answer."""
        return self._opener is not None and self._opener.is_alive()

    def open(self) -> None:
        """Make sure that the peer has answered once.

        Raises:
            PeerGone: nobody is there, or no answer within the time limit.
        """
        if self._opener is None:
            self._opener = Thread(target=self._open, name=f"open {self._session}", daemon=True)
            self._opener.start()
        self._opener.join(self._limits.timeout_s)
        if self.opening:
            raise PeerGone(f"{self._session} does not answer within {self._limits.timeout_s} s")
        if self._opened != [True]:
            raise PeerGone(f"nobody answers at {self._session}")

    def _open(self) -> None:
        self._hosts = sockets.addresses(self._session.rpartition(":")[0].strip("[]"))
        self._opened.append(self._engine.open(self._session))

    def push(self, copies: Copies) -> None:
        """Write all copies and wait until the peer has acknowledged them.

        Raises:
            WriteCut: it failed, and the engine must be ended before anybody is told.
        """
        begun: deque[tuple[int, int]] = deque()  # id, bytes
        pieces = _pieces(copies)
        piece = next(pieces, None)
        window = 0
        moved_s = looked_s = time.monotonic()
        naps = Naps(moved_s)
        while begun or piece is not None:
            while piece is not None and len(begun) < self._limits.copies and window < WINDOW_BYTES:
                begun.append((self._begin(piece), piece.bytes))
                window += piece.bytes
                piece = next(pieces, None)
            done = self._settled(begun)
            now_s = time.monotonic()
            if done:
                moved_s = now_s
                window -= done
                naps.moved(done)
                if piece is not None or not begun:
                    continue  # nobody sleeps while more can be begun
            if now_s - max(moved_s, looked_s) > STALL_S:
                self._drop_unsent()
                looked_s = now_s
            self._check_time(now_s - moved_s, len(begun))
            time.sleep(naps.next_s(now_s, window))

    def end(self) -> None:
        """End the engine; its connections are reset, so that the kernel sends no more either."""
        self._drop_unsent()
        self._engine.end()

    def _drop_unsent(self) -> None:
        sockets.reset_on_close(self._hosts, PORTS)

    def _begin(self, piece: Copy) -> int:
        number = self._engine.submit(self._session, piece)
        if number is None:
            raise WriteCut(f"{self._session}: a copy of {piece.bytes} bytes was not accepted")
        return number

    def _settled(self, begun: deque[tuple[int, int]]) -> int:
        """Take the acknowledged copies off the front and return their bytes."""
        total = 0
        while begun:
            number, length = begun[0]
            sent = self._engine.check(number)
            if sent is Sent.RUNNING:
                break
            if sent is not Sent.DONE:
                raise WriteCut(f"{self._session}: a copy of {length} bytes {sent.name.lower()}")
            begun.popleft()
            total += length
        return total

    def _check_time(self, still_s: float, waiting: int) -> None:
        if self._closing.is_set():
            raise WriteCut(f"{self._session}: closed here with {waiting} copies under way")
        if still_s > 2 * self._limits.timeout_s:  # Mooncake's own timeout has failed to act
            raise WriteCut(f"{self._session}: {waiting} copies have not moved for {still_s:.1f} s")


def _pieces(copies: Copies) -> Iterator[Copy]:
    for copy in copies:
        for start in range(0, copy.bytes, PIECE_BYTES):
            length = min(PIECE_BYTES, copy.bytes - start)
            yield Copy(copy.source + start, copy.target + start, length)
