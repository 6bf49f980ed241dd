"""How many may stand in a daemon's HTTP door, and for how long without a word.

- Above the limit a connection is answered 503 and closed, so that open ones keep their sockets.
- A connection on which no request has come within ``HEAD_S`` is closed. After its first request
  the server's own limit for idle connections holds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

CONNECTIONS_LIMIT = 4096
HEAD_S = 30.0
SWEEP_S = 5.0
TURNED_AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    b"Retry-After: 1\r\nConnection: close\r\nContent-Length: 73\r\n\r\n"
    b'{"error":{"message":"too many connections are open here","code":503}}    '
)


@dataclass(slots=True)
class Door:
    """The connections of one site; used by its event loop only."""

    limit: int = CONNECTIONS_LIMIT
    head_s: float = HEAD_S
    sweep_s: float = SWEEP_S
    is_closed: bool = False  # who was accepted before the end and comes after it
    turned_away: int = 0
    cut: int = 0
    _served: set[object] = field(default_factory=set)  # connections that brought a request
    _since_s: dict[Any, float] = field(default_factory=dict)  # those that did not yet

    def passed(self, request: web.Request) -> None:
        """Note that a connection has brought a request."""
        self._served.add(request.protocol)

    def greet(self, server: web.Server) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        if self.is_closed or len(server.connections) >= self.limit:
            self.turned_away += 1
            return TurnedAway()
        return server()

    def clear(self, server: web.Server) -> None:
        """Cut who slipped in while the server closed."""
        for one in server.connections:
            if one.transport is not None:
                one.transport.abort()

    async def keep_sweeping(self, server: web.Server) -> None:
        """Close silent connections until cancelled."""
        while True:
            await asyncio.sleep(self.sweep_s)
            self.sweep(server, asyncio.get_running_loop().time())

    def sweep(self, server: web.Server, now_s: float) -> None:
        """Close connections that have been here for ``head_s`` without a request."""
        live = set(server.connections)
        self._served &= live
        silent = live - self._served
        self._since_s = {one: self._since_s.get(one, now_s) for one in silent}
        for one, since_s in self._since_s.items():
            if now_s - since_s >= self.head_s and one.transport is not None:
                self.cut += 1
                one.transport.abort()


class TurnedAway(asyncio.Protocol):
    """Answers 503 to whatever comes, and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer at once."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(TURNED_AWAY)
        transport.close()
