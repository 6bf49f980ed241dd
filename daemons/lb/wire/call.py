"""One request of a client, and the answer to it; every verb that sends raises ClientGone.

An answer is whole, or a head with chunks after it (HTTP/1.0: bytes until the connection ends). A
client that does not read holds back whoever sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from daemons.lb.dispatch import ClientGone
from daemons.lb.wire.head import Head

LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


@dataclass(slots=True)
class Flow:
    """Says whether a connection takes bytes now."""

    is_gone: bool = False
    _waiter: asyncio.Future[None] | None = None
    is_paused: bool = False

    async def opened(self) -> None:
        """Return when it takes bytes; raises ClientGone when it never will."""
        while self.is_paused and not self.is_gone:
            self._waiter = self._waiter or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)
        if self.is_gone:
            raise ClientGone

    def resume(self) -> None:
        """Let those go on that wait."""
        self.is_paused = False
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            if not waiter.done():
                waiter.set_result(None)


@dataclass(slots=True)
class Call:
    """A request that is whole, and the way back."""

    head: Head
    body: bytes
    write: Callable[[bytes], None]
    flow: Flow
    remote: str = ""
    client: str = ""  # who asks, by its key
    extra: dict[str, str] = field(default_factory=dict)  # fields of every answer
    status: int = 0  # of the head that went out; 0: none did
    has_ended: bool = False

    @property
    def path(self) -> str:
        """Return its path."""
        return self.head.path

    @property
    def headers(self) -> Mapping[str, str]:
        """Return its fields by small names."""
        return self.head.headers

    async def begin(self, headers: Mapping[str, str]) -> None:
        """Send the head of an event stream."""
        self.put_begin(headers)
        await self.flow.opened()

    def put_begin(self, headers: Mapping[str, str]) -> None:
        """Send the head, and do not wait for the client to take it."""
        if self.head.is_http10:
            self.head.keep_alive = False
        coding = {} if self.head.is_http10 else {"Transfer-Encoding": "chunked"}
        self._put(self._head(200, {**STREAM, **headers, **coding}))
        self.status = 200

    async def send(self, data: bytes) -> None:
        """Send a part of the stream."""
        self.put(data)
        if self.flow.is_paused:
            await self.flow.opened()

    def put(self, data: bytes) -> None:
        """Send a part, and do not wait."""
        self._put(data if self.head.is_http10 else b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """End the stream."""
        if not self.head.is_http10:
            self._put(b"0\r\n\r\n")
        self.has_ended = True

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer."""
        self.put_answer(status, headers, body)
        if self.flow.is_paused:
            await self.flow.opened()

    def put_answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer, and do not wait for the client to take it."""
        self._put(self._head(status, {**headers, "Content-Length": str(len(body))}) + body)
        self.status, self.has_ended = status, True

    def _put(self, data: bytes) -> None:
        if self.flow.is_gone:
            raise ClientGone
        self.write(data)

    def _head(self, status: int, headers: Mapping[str, str]) -> bytes:
        fields = {**headers, **self.extra}
        if not self.head.keep_alive:
            fields["Connection"] = "close"
        elif self.head.is_http10:
            fields["Connection"] = "keep-alive"
        told = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
        line = LINES.get(status) or f"HTTP/1.1 {status} \r\n"  # 499 has no phrase
        return f"{line}{told}\r\n".encode("latin-1", "replace")
