"""Hands a connection on to another process: bytes both ways, each end held back by the other."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

CONNECT_S = 2.0
NOBODY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Tunnel(asyncio.Protocol):
    """The client's end; opens the other one at once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._early: list[bytes] = []
        self._far: Far | None = None
        self._opening: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport = None  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Look for the other process."""
        self.transport = cast(asyncio.Transport, transport)
        self._opening = asyncio.get_running_loop().create_task(self._open(), name="tunnel")

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, far = await loop.create_unix_connection(lambda: Far(self), self._path)
        except OSError:  # TimeoutError too
            self.transport.write(NOBODY)
            self.transport.close()
            return
        if self.transport.is_closing():
            far.transport.close()
            return
        self._far = far
        far.transport.write(b"".join(self._early))
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        """Pass on."""
        if self._far is None:
            self._early.append(data)
        else:
            self._far.transport.write(data)

    def eof_received(self) -> None:
        """End both."""

    def connection_lost(self, _: Exception | None) -> None:
        """End the other one too."""
        if self._opening is not None:
            self._opening.cancel()
        if self._far is not None:
            self._far.transport.close()

    def pause_writing(self) -> None:
        """Hold the other end back."""
        if self._far is not None:
            self._far.transport.pause_reading()

    def resume_writing(self) -> None:
        """Let it go on."""
        if self._far is not None:
            self._far.transport.resume_reading()


class Far(asyncio.Protocol):
    """The end that the other process serves."""

    def __init__(self, near: Tunnel) -> None:
        self._near = near
        self.transport: asyncio.Transport = None  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass back."""
        self._near.transport.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        """End the other one too."""
        self._near.transport.close()

    def pause_writing(self) -> None:
        """Hold the client back."""
        with contextlib.suppress(RuntimeError):
            self._near.transport.pause_reading()

    def resume_writing(self) -> None:
        """Let it go on."""
        with contextlib.suppress(RuntimeError):
            self._near.transport.resume_reading()
