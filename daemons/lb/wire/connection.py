"""One connection of a client: its requests in order, each whole before it is served.

- Orders are served here; everything else gets the connection handed over, with the bytes that came.
- A client that closes its side is gone: what serves it is cancelled at once.
- Every part of a request has a deadline, which the site's sweep holds: the first head, a head that
  began, the body, and the rest between two requests. An answer that nobody reads ends by TCP's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, cast

import httptools

from daemons.lb.wire.call import Call, Flow
from daemons.lb.wire.head import (
    HEAD_BYTES_LIMIT,
    HEAD_END,
    BadHead,
    Fields,
    Head,
    read_head,
    request_line,
)
from daemons.runtime.door import HEAD_S
from daemons.runtime.http import BODY_S, IDLE_S, Refusal

CR = 0x0D
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
AHEAD_BYTES_LIMIT = 64 << 10  # of requests that come before the last one was answered
DRAIN_S = 2.0  # after an early refusal its sender may go on for so long

Serve = Callable[[Call], Awaitable[None]]


class Way(Protocol):
    """A request that is served without a task, as long as all goes well."""

    def go_on(self) -> None:
        """Be served by a task from now on."""
        ...


class Server(Protocol):
    """What whoever serves a request without a task says to its connection."""

    def served(self, call: Call) -> None:
        """The answer is out."""
        ...

    def serve_by(self, call: Call, serving: Awaitable[None]) -> None:
        """A task shall go on; it begins even when the client leaves before."""
        ...


Start = Callable[[Call, Server], Way | None]  # None: a task serves it


@dataclass(slots=True)
class Doorway:
    """What all connections of one site share."""

    serve: Serve
    is_ours: Callable[[str, str], bool]  # by method and path: an order
    hand_over: Callable[[], asyncio.BaseProtocol]  # makes the protocol that serves all else
    body_bytes_limit: int
    connections: set[Connection] = field(default_factory=set)
    is_closing: bool = False  # after its answer a connection ends
    start: Start | None = None  # where not every request gets a task of its own

    def sweep(self, now_s: float) -> None:
        """Hold the deadlines."""
        for connection in list(self.connections):
            connection.look(now_s)


class Connection(asyncio.Protocol):
    """The bytes of one client."""

    def __init__(self, doorway: Doorway, clock: Callable[[], float]) -> None:
        self._doorway = doorway
        self._clock = clock
        self._buffer = bytearray()
        self._flow = Flow()
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._remote = ""
        self._head: Head | None = None
        self._fields: Fields | None = None
        self._parser: httptools.HttpRequestParser | None = None
        self._deadline_s = clock() + HEAD_S
        self._in_head = True
        self.task: asyncio.Task[None] | None = None
        self._has_begun = False  # the task
        self._way: Way | None = None
        self._is_over = False  # nothing that comes is read any more

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(
            asyncio.Transport, transport
        )  # of uvloop too, which is none by class
        name = transport.get_extra_info("peername")
        self._remote = str(name[0]) if isinstance(name, tuple) else ""
        self._doorway.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if self._is_over:
            return
        self._buffer += data
        if not self.is_busy:
            self._advance()
        elif len(self._buffer) > AHEAD_BYTES_LIMIT:
            self._transport.pause_reading()

    def eof_received(self) -> None:
        """End: nobody is served who has left."""
        self._leave()

    def connection_lost(self, _: Exception | None) -> None:
        """End."""
        self._leave()

    def pause_writing(self) -> None:
        """Hold back who sends."""
        self._flow.is_paused = True

    def resume_writing(self) -> None:
        """Let it go on."""
        self._flow.resume()

    @property
    def is_busy(self) -> bool:
        """Whether a request is being served."""
        return self.task is not None or self._way is not None

    # What the site calls.

    def go_on(self) -> None:
        """Let a task serve what is open."""
        if self._way is not None:
            self._way.go_on()

    def look(self, now_s: float) -> None:
        """End what is late."""
        if self.is_busy or now_s < self._deadline_s:
            return
        if self._head is not None and not self._is_over:
            self._refuse(BadHead(408, f"body: not here within {BODY_S:g} s"))
        else:
            self._transport.abort()

    def close_when_idle(self) -> None:
        """End now, or after the answer that is under way."""
        if not self.is_busy:
            self._transport.close()
        elif self._head is not None:
            self._head.keep_alive = False

    def abort(self) -> None:
        """End at once."""
        self._transport.abort()

    # A request.

    def _advance(self) -> None:
        try:
            if self._head is None and not self._begin():
                return
            body = self._body()
        except BadHead as bad:
            self._refuse(bad)
            return
        except zlib.error as error:
            self._refuse(BadHead(400, f"body: {error}"))
            return
        if body is not None:
            self._serve(body)

    def _begin(self) -> bool:
        """Read a head; say whether one of ours is here."""
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):  # some send it after a body
            del buffer[:2]
        first = buffer.find(b"\n")
        if first >= 0:
            if buffer[first - 1] != CR:
                raise BadHead(400, "request: its first line does not end as a line of HTTP")
            if not self._doorway.is_ours(*request_line(buffer)):
                self._give_away()
                return False
        end = buffer.find(HEAD_END)
        if end > HEAD_BYTES_LIMIT or (end < 0 and len(buffer) > HEAD_BYTES_LIMIT):
            raise BadHead(431, "request: the head is too large")
        if end < 0:
            if not self._in_head and buffer:  # the first byte after an answer
                self._in_head, self._deadline_s = True, self._clock() + HEAD_S
            return False
        raw = bytes(buffer[: end + 4])
        del buffer[: end + 4]
        self._fields = Fields(limit=self._doorway.body_bytes_limit)
        self._head, self._parser = read_head(raw, self._fields)
        self._deadline_s = self._clock() + BODY_S
        self._check(self._head)
        return True

    def _check(self, head: Head) -> None:
        limit = self._doorway.body_bytes_limit
        if head.length is not None and head.length > limit:
            raise BadHead(413, f"body: {head.length} bytes, the limit is {limit}")
        if "expect" in head.headers:
            if not head.expects:
                raise BadHead(417, "request: it expects what is not known here")
            if not self._buffer and head.length != 0:
                self._transport.write(CONTINUE)

    def _body(self) -> bytes | None:
        """Return the body when it is whole."""
        head, fields = self._head, self._fields
        assert head is not None
        assert fields is not None
        if head.length is None:
            if self._buffer:
                came = bytes(self._buffer)
                self._buffer.clear()
                self._feed(came)
            if not fields.ended:
                return None
            body = bytes(fields.body)
        else:
            if len(self._buffer) < head.length:
                return None
            body = bytes(self._buffer[: head.length])
            del self._buffer[: head.length]
        return _unpacked(body, head.headers.get("content-encoding", ""), fields.limit)

    def _feed(self, came: bytes) -> None:
        """Read chunks. What follows the last one is not served: its place is not known."""
        assert self._parser is not None
        assert self._head is not None
        assert self._fields is not None
        try:
            self._parser.feed_data(came)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, BadHead):
                raise error.__context__ from error
            if not self._fields.ended:
                raise BadHead(400, f"body: {error}") from error
            self._head.keep_alive = False
        if self._fields.begun > 1:
            self._head.keep_alive = False

    def _serve(self, body: bytes) -> None:
        head = self._head
        assert head is not None
        head.keep_alive = head.keep_alive and not self._doorway.is_closing
        call = Call(head, body, self._transport.write, self._flow, self._remote)
        start = self._doorway.start
        if start is not None:
            self._way = start(call, self)
        if not self.is_busy:
            self.serve_by(call, self._doorway.serve(call))

    def serve_by(self, call: Call, serving: Awaitable[None]) -> None:
        """Serve one request by a task, then the next one."""
        self._way, self._has_begun = None, False
        task = self._serving(call, serving)
        self.task = asyncio.get_running_loop().create_task(task, name="request")

    async def _serving(self, call: Call, serving: Awaitable[None]) -> None:
        self._has_begun = True
        try:
            await serving
        finally:
            self.task = None
            self.served(call)

    def served(self, call: Call) -> None:
        """Begin with the next request, or end."""
        self._way = None
        if not call.has_ended or not call.head.keep_alive or self._doorway.is_closing:
            self._is_over = True
            self._deadline_s = self._clock() + DRAIN_S
            self._transport.close()
        else:
            self._next()

    def _next(self) -> None:
        self._head = self._fields = self._parser = None
        self._in_head, self._deadline_s = False, self._clock() + IDLE_S
        if self._flow.is_gone:
            return
        self._transport.resume_reading()
        if self._buffer:
            self._advance()

    def _give_away(self) -> None:
        """Hand the connection over with all that came."""
        self._doorway.connections.discard(self)
        other = cast(asyncio.Protocol, self._doorway.hand_over())
        self._transport.set_protocol(other)
        other.connection_made(self._transport)
        other.data_received(bytes(self._buffer))
        self._buffer.clear()

    def _refuse(self, bad: BadHead) -> None:
        """Answer that this cannot be read, and end.

        The sender may go on for a moment: closed at once, it would get a reset for an answer.
        """
        self._is_over = True
        self._buffer.clear()
        self._deadline_s = self._clock() + DRAIN_S
        self._transport.resume_reading()
        head = Head("POST", "", {}, keep_alive=False, is_http10=False, length=0)
        response = Refusal(bad.status, bad.text).response()
        body = response.body
        assert isinstance(body, bytes)
        Call(head, b"", self._transport.write, self._flow).put_answer(
            response.status, response.headers, body
        )
        if not self._transport.can_write_eof():  # TLS
            self._transport.close()
            return
        with contextlib.suppress(OSError):  # it has left meanwhile
            self._transport.write_eof()

    def _leave(self) -> None:
        self._doorway.connections.discard(self)
        self._flow.is_gone = True
        self._flow.resume()
        if self._way is not None:
            self._way.go_on()  # its task sees that nobody is there
        elif self.task is not None and self._has_begun:
            self.task.cancel()


def _unpacked(body: bytes, coding: str, limit: int) -> bytes:
    """Return a body as it was before it was packed; raises BadHead, zlib.error."""
    name = coding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        raise BadHead(415, f"body: content coding {coding[:40]!r}")
    unpack = zlib.decompressobj(wbits=47 if name != "deflate" else zlib.MAX_WBITS)
    plain = unpack.decompress(body, limit + 1)
    if len(plain) > limit:
        raise BadHead(413, f"body: more than {limit} bytes")
    if not unpack.eof:
        raise BadHead(400, "body: its packing ends early")
    return plain
