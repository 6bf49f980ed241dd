"""Connections to workers: kept between requests, one request at a time on each.

- Before a kept one is used it is asked whether its worker closed it meanwhile, so that nothing is
  sent into a dead one. Once bytes are out there is no second try: the room may have begun.
- Idle ones are closed after ``keep_s``, sooner than workers do it, and no more than
  ``idle_limit`` are kept for each worker. The rooms that a worker gets bound those in use.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from daemons.lb.wire.line import Line

KEEP_S = 30.0
UNANSWERED_S = 120.0  # bytes that no kernel acknowledges


@dataclass(slots=True)
class Pool:
    """Lines by host and port."""

    keep_s: float = KEEP_S
    idle_limit: int = 256
    clock: Callable[[], float] = time.monotonic
    idle: dict[tuple[str, int], deque[tuple[float, Line]]] = field(default_factory=dict)
    lines: set[Line] = field(default_factory=set)
    opened: int = 0
    reused: int = 0

    async def line(self, host: str, port: int, connect_s: float) -> Line:
        """Return a connection that carries no request.

        Raises:
            OSError: there is none.
            TimeoutError: none within ``connect_s``.
        """
        if (line := self.kept(host, port)) is not None:
            return line
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_s):
            _, line = await loop.create_connection(lambda: Line(self.lines), host, port)
        sock: socket.socket | None = line.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNANSWERED_S * 1000))
        self.opened += 1
        return line

    def kept(self, host: str, port: int) -> Line | None:
        """Return a connection that is open already, None when there is none."""
        lines = self.idle.get((host, port))
        oldest_s = self.clock() - self.keep_s
        while lines:
            since_s, line = lines.pop()
            if since_s > oldest_s and line.is_quiet:
                self.reused += 1
                return line
            line.abort()
        return None

    def give_back(self, host: str, port: int, line: Line) -> None:
        """Keep a line for the next request, if its answer was read to the end."""
        if (kept := self.idle.get((host, port))) is None:
            kept = self.idle[host, port] = deque()
        if not line.is_reusable or len(kept) >= self.idle_limit:
            line.abort()
            return
        line.rest()
        kept.append((self.clock(), line))

    def sweep(self) -> None:
        """Close what has been idle for too long."""
        oldest_s = self.clock() - self.keep_s
        for place, kept in list(self.idle.items()):
            while kept and (kept[0][0] <= oldest_s or kept[0][1].is_lost):
                kept.popleft()[1].abort()
            if not kept:
                del self.idle[place]

    async def keep_sweeping(self) -> NoReturn:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self.keep_s / 4)
            self.sweep()

    def close(self) -> None:
        """Close all of them."""
        self.idle.clear()
        for line in list(self.lines):
            line.abort()
