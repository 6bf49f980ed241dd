"""A listening balancer: orders are served by the data path, all else by the aiohttp application.

Both stand behind one listening socket. A connection whose request is no order is handed over, with
the bytes that came, and ends after that answer: so each path reads only what is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from daemons.lb.wire.connection import Connection, Doorway
from daemons.runtime.door import Door, TurnedAway
from daemons.runtime.http import DOOR, IDLE_S, STOP_S, UNREAD_S, bound, url_of

SWEEP_S = 0.5  # how exactly deadlines are held


@dataclass(frozen=True, slots=True)
class Tls:
    """Where HTTPS is spoken beside HTTP, and by which certificate."""

    context: ssl.SSLContext
    host: str
    port: int
    shared: bool = False  # with other processes


@dataclass(slots=True)
class FrontSite:
    """What listens."""

    host: str
    port: int  # the bound one
    runner: web.AppRunner
    server: web.Server
    door: Door
    doorway: Doorway
    listeners: list[asyncio.Server]
    beside: Sequence[asyncio.Task[None]]
    stop_s: float

    @property
    def url(self) -> str:
        """Base URL of the bound address."""
        return url_of(self.host, self.port)

    async def answer_at(self, path: str) -> None:
        """Let the application answer on a Unix socket too; an earlier life's gives way."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = await loop.create_unix_server(lambda: self.door.greet(self.server), path)
        self.listeners.append(listener)

    async def close(self) -> None:
        """Stop listening, let open requests end for ``stop_s``, then cancel them."""
        for listener in self.listeners:
            listener.close()
        self.door.is_closed = self.doorway.is_closing = True
        for connection in list(self.doorway.connections):
            connection.close_when_idle()
        await self._orders_end()
        await self.runner.cleanup()
        for task in self.beside:
            task.cancel()
        await asyncio.gather(*self.beside, return_exceptions=True)
        self.door.clear(self.server)
        await asyncio.sleep(0)  # a cut connection is closed one turn of the loop later

    async def _orders_end(self) -> None:
        for connection in list(self.doorway.connections):
            connection.go_on()
        tasks = [one.task for one in self.doorway.connections if one.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=self.stop_s)
        for connection in list(self.doorway.connections):
            connection.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_front(
    app: web.Application,
    doorway: Doorway,
    host: str,
    port: int,
    sockets: Sequence[socket.socket] = (),
    *,
    tls: Tls | None = None,
    stop_s: float = STOP_S,
) -> FrontSite:
    """Serve on ``host`` and ``port`` (0: any free one), or on open sockets.

    Raises:
        OSError: the address cannot be bound.
    """
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=stop_s,
        keepalive_timeout=IDLE_S,
    )
    await runner.setup()
    server, door = runner.server, app[DOOR]
    assert server is not None
    loop = asyncio.get_running_loop()
    doorway.hand_over = lambda: door.greet(server)

    def greet() -> asyncio.BaseProtocol:
        if doorway.is_closing or len(doorway.connections) + len(server.connections) >= door.limit:
            door.turned_away += 1
            return TurnedAway()
        return Connection(doorway, loop.time)

    listening, listeners = list(sockets), list[asyncio.Server]()
    try:
        if not listening:
            listening.append(bound(host, port))
        secure = [] if tls is None else [bound(tls.host, tls.port, shared=tls.shared)]
        for one in (*listening, *secure):
            # connections inherit it; else what a client never reads keeps its connection for ever
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1000))
            context = tls.context if tls is not None and one in secure else None
            listeners.append(await loop.create_server(greet, sock=one, backlog=1024, ssl=context))
    except OSError:
        for listener in listeners:
            listener.close()
        for one in listening:
            one.close()
        await runner.cleanup()
        raise
    beside = [
        asyncio.create_task(door.keep_sweeping(server), name="door"),
        asyncio.create_task(_keep_sweeping(doorway), name="doorway"),
    ]
    bound_port = listening[0].getsockname()[1]
    return FrontSite(host, bound_port, runner, server, door, doorway, listeners, beside, stop_s)


async def _keep_sweeping(doorway: Doorway) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SWEEP_S)
        doorway.sweep(loop.time())
