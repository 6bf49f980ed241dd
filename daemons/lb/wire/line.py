"""One connection to a worker: a request out, the answer back as it comes.

- Who does not read holds the worker back.
- An answer without a length ends with its connection.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterable
from typing import cast

import httptools

from daemons.lb.wire.head import keeps, small_name

UNREAD_BYTES_LIMIT = 256 << 10
HEAD_BYTES_LIMIT = 64 << 10


class LineLost(Exception):
    """The connection ended, or what came is no HTTP; the text tells which."""


class Line(asyncio.Protocol):
    """Reads answers; ``status`` and ``headers`` stand when :meth:`answered` returned."""

    def __init__(self, lines: set[Line]) -> None:
        self._lines = lines
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self._poll = select.poll()
        self._waiter: asyncio.Future[None] | None = None
        self.heard: Callable[[], None] | None = None  # told of all news instead of who waits
        self.is_lost = False
        self.rest()

    def rest(self) -> None:
        """Forget the last answer: the next one may come."""
        self.heard = None
        self.status = 0  # 0: no head yet
        self.headers: dict[str, str] = {}
        self.received_s = 0.0  # when bytes came last, by the loop's clock
        self._parser: httptools.HttpResponseParser | None = None
        self._parts: list[bytes] = []
        self._unread_bytes = 0
        self._head_bytes = 0
        self._has_ended = False
        self._is_paused = False
        self._trouble = ""

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)  # of uvloop too, which is none by class
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._lines.add(self)

    def data_received(self, data: bytes) -> None:
        """Take what came; between two answers nothing may."""
        if self._parser is None or self._has_ended:
            self._end("it speaks without being asked")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(f"no answer of HTTP: {error}")
            return
        if self._unread_bytes > UNREAD_BYTES_LIMIT and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """End; well if the end is the answer's own."""
        self._lines.discard(self)
        self.is_lost = True
        if not self._has_ended:
            if error is None and self.status and self._ends_with_connection:
                self._has_ended = True
            elif not self._trouble:
                self._trouble = f"connection lost ({type(error).__name__ if error else 'closed'})"
        self._wake()

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_LIMIT:
            raise ValueError("the head is too large")
        self.headers[small_name(name)] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is here, but for one that only says that another will follow."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
        else:
            self.headers.clear()

    def on_body(self, part: bytes) -> None:
        """Keep a part until it is read."""
        self._parts.append(part)
        self._unread_bytes += len(part)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self.status:
            self._has_ended = True

    # What a leg calls.

    @property
    def is_quiet(self) -> bool:
        """Whether its worker has neither closed it nor said anything, as the kernel knows now."""
        return not self.is_lost and not self.transport.is_closing() and not self._poll.poll(0)

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow the last answer."""
        parser, wish = self._parser, self.headers.get("connection", "")
        return (
            self._has_ended
            and not self.is_lost
            and not self._ends_with_connection
            and parser is not None
            and keeps(parser.get_http_version(), wish)
            and not self.transport.is_closing()
            and self.transport.get_write_buffer_size() == 0
        )

    def ask(self, parts: Iterable[bytes]) -> None:
        """Send a request."""
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(b"".join(parts))

    async def answered(self) -> None:
        """Return when status and headers are here; raises LineLost."""
        while not self.status:
            self._look()
            await self._something()

    async def part(self) -> bytes:
        """Return what has come of the body, b"" at its end; raises LineLost before it."""
        while True:
            if self._parts:
                return self.taken()
            if self._has_ended:
                return b""
            self._look()
            await self._something()

    def taken(self) -> bytes:
        """Return what has come of the body and was not read yet; waits for nothing."""
        parts, self._parts = self._parts, []
        self._unread_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def put_back(self, data: bytes) -> None:
        """Let what was taken be read once more."""
        if data:
            self._parts.insert(0, data)
            self._unread_bytes += len(data)

    @property
    def has_ended(self) -> bool:
        """Whether the answer is whole."""
        return self._has_ended

    @property
    def is_broken(self) -> bool:
        """Whether the answer will never be whole."""
        return not self._has_ended and (self.is_lost or bool(self._trouble))

    def abort(self) -> None:
        """End at once."""
        self.transport.abort()

    @property
    def _ends_with_connection(self) -> bool:
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    def _look(self) -> None:
        if self._trouble or self.is_lost:
            raise LineLost(self._trouble or "connection lost (closed)")

    async def _something(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self.heard is not None:
            self.heard()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, trouble: str) -> None:
        self._trouble = trouble
        self.transport.abort()
        self._wake()
