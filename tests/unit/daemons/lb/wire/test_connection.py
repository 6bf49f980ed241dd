from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemons.lb.wire.call import Call
from daemons.lb.wire.connection import AHEAD_BYTES_LIMIT, Connection, Doorway
from daemons.runtime.door import HEAD_S
from daemons.runtime.http import BODY_S, IDLE_S
from tests.unit.daemons.lb.conftest import DEADLINE_S, until

LIMIT = 1000


async def echo(call: Call) -> None:
    """Answer the body."""
    await call.answer(200, {}, call.body)


class Other(asyncio.Protocol):
    """What all else is handed over to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"other: " + data)
        self.transport.close()


@dataclass
class Here:
    """A doorway that listens."""

    port: int = 0
    now_s: float = 0.0
    serve: Callable[[Call], Awaitable[None]] = echo
    doorway: Doorway = field(init=False)

    def __post_init__(self) -> None:
        self.doorway = Doorway(
            lambda call: self.serve(call), lambda _, path: path == "/o", Other, LIMIT
        )

    async def said(self, *parts: bytes, half: bool = False) -> bytes:
        """Send parts, one turn of the loop apart, and return all that comes until the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0)
        try:
            if half:
                writer.write_eof()
            async with asyncio.timeout(DEADLINE_S):
                return await reader.read()
        finally:
            writer.close()


@pytest.fixture
async def here() -> AsyncIterator[Here]:
    one = Here()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(one.doorway, lambda: one.now_s), "127.0.0.1", 0
    )
    one.port = server.sockets[0].getsockname()[1]
    yield one
    server.close()
    for connection in list(one.doorway.connections):
        connection.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def order(body: bytes, *fields: bytes, last: bool = True) -> bytes:
    head = [b"POST /o HTTP/1.1", b"Host: a", *fields, *([b"Connection: close"] if last else [])]
    if not any(name.lower().startswith((b"content-le", b"transfer")) for name in fields):
        head.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def bodies(said: bytes) -> list[bytes]:
    return [part.partition(b"\r\n\r\n")[2] for part in said.split(b"HTTP/1.1 200 OK")[1:]]


async def test_orders_of_one_connection_are_answered_in_order_however_they_come(here: Here) -> None:
    raw = order(b"one", last=False) + b"\r\n" + order(b"two", last=False) + order(b"three")
    for size in (1, 10, len(raw)):
        parts = [raw[start : start + size] for start in range(0, len(raw), size)]
        assert bodies(await here.said(*parts)) == [b"one", b"two", b"three"]


async def test_a_body_in_chunks_is_one_body_and_what_follows_is_not_served(here: Here) -> None:
    chunks = b"3;x=y\r\none\r\n2\r\n-2\r\n0\r\nX: y\r\n\r\n"
    raw = order(chunks, b"Transfer-Encoding: chunked", last=False) + order(b"three")
    assert bodies(await here.said(raw)) == [b"one-2"]
    one = order(chunks, b"Transfer-Encoding: chunked")
    assert bodies(await here.said(*(bytes([byte]) for byte in one))) == [b"one-2"]


async def test_a_packed_body_is_unpacked_up_to_the_limit(here: Here) -> None:
    for coding, packed in (
        (b"gzip", gzip.compress(b"body")),
        (b"deflate", zlib.compress(b"body")),
        (b"identity", b"body"),
    ):
        assert bodies(await here.said(order(packed, b"Content-Encoding: " + coding))) == [b"body"]
    bomb = gzip.compress(b" " * (LIMIT + 1))
    for packed, coding, status in (
        (bomb, b"gzip", b"413"),
        (gzip.compress(b"body")[:-5], b"gzip", b"400"),
        (b"body", b"gzip", b"400"),
        (b"body", b"br", b"415"),
    ):
        said = await here.said(order(packed, b"Content-Encoding: " + coding))
        assert said.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (order(b"x", b"Content-Length: 1", b"Transfer-Encoding: chunked"), 400),
        (order(b"x", b"Content-Length: 1", b"Content-Length: 2"), 400),
        (order(b"zz\r\nx\r\n", b"Transfer-Encoding: chunked"), 400),
        (order(b"3\nabc\n0\n\n", b"Transfer-Encoding: chunked"), 400),
        (order(b"", b"Content-Length: %d" % (LIMIT + 1)), 413),
        (order(b"%x\r\n%b\r\n0\r\n\r\n" % (1001, b"x" * 1001), b"Transfer-Encoding: chunked"), 413),
        (order(b"", b"X: " + b"y" * 9000), 431),
        (b"POST /o HTTP/1.1\r\nX: " + b"y" * 40000, 431),
        (b"y" * 40000, 431),
        (order(b"", b"Expect: a-miracle"), 417),
        (b"POST /o HTTP/1.1\n\n", 400),
        (b"POST /o HTTP/1.1\r\n\r\n", 400),
    ],
)
async def test_what_cannot_be_read_is_told_and_ends_the_connection(
    here: Here, raw: bytes, status: int
) -> None:
    said = await here.said(raw)
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in head
    assert json.loads(body)["error"]["code"] == status


async def test_a_client_that_expects_a_word_gets_it_before_its_body(here: Here) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(order(b"", b"Content-Length: 2", b"Expect: 100-continue"))
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert (await reader.read()).endswith(b"\r\n\r\nok")
    writer.close()


async def test_all_else_is_handed_over_with_the_bytes_that_came(here: Here) -> None:
    raw = b"GET /else HTTP/1.1\r\nHost: a\r\n\r\n"
    assert await here.said(raw) == b"other: " + raw
    assert (await here.said(raw[:5], raw[5:])).startswith(b"other: GET /else")
    after = await here.said(order(b"one", last=False) + raw)
    assert after.endswith(b"one" + b"other: " + raw)
    assert here.doorway.connections == set()


@pytest.mark.parametrize("half", [False, True])
async def test_a_client_that_leaves_cancels_what_serves_it(here: Here, *, half: bool) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(_: Call) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    here.serve = wait
    _, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(order(b"x"))
    await asyncio.wait_for(began.wait(), DEADLINE_S)
    if half:
        writer.write_eof()
    else:
        writer.transport.abort()
    await asyncio.wait_for(cancelled.wait(), DEADLINE_S)
    writer.close()


async def test_who_sends_far_ahead_is_held_back_and_loses_nothing(here: Here) -> None:
    go, seen = asyncio.Event(), 0

    async def slow(call: Call) -> None:
        nonlocal seen
        await go.wait()
        seen += 1
        await call.answer(200, {}, b"")

    here.serve = slow
    count = 4 * AHEAD_BYTES_LIMIT // LIMIT
    raw = order(b"x" * LIMIT, last=False) * count + order(b"")
    asking = asyncio.create_task(here.said(raw))
    ours = here.doorway.connections
    await until(lambda: any(len(one._buffer) > AHEAD_BYTES_LIMIT for one in ours))
    go.set()
    await asking
    assert seen == count + 1


async def lives(here: Here, came: bytes, passes_s: float) -> bytes:
    """Return what a client that sent so much and no more hears until it is cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(came)
    ours = here.doorway.connections
    if came.endswith(b"one"):
        await asyncio.wait_for(reader.readuntil(b"one"), DEADLINE_S)
    elif came:
        await until(lambda: any(one._buffer for one in ours))
    await until(lambda: ours)
    here.now_s += passes_s - 1
    here.doorway.sweep(here.now_s)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ours
    here.now_s += 2
    here.doorway.sweep(here.now_s)
    here.now_s += 10  # who was told may read it before
    here.doorway.sweep(here.now_s)
    await until(lambda: not ours)
    try:
        rest = await reader.read()
    except ConnectionError:
        rest = b""
    writer.close()
    return rest


@pytest.mark.parametrize(
    ("came", "passes_s"),
    [
        (b"", HEAD_S),
        (b"POST /o HT", HEAD_S),
        (order(b"one", last=False), IDLE_S),
    ],
)
async def test_silence_has_its_deadlines(here: Here, came: bytes, passes_s: float) -> None:
    assert await lives(here, came, passes_s) == b""


async def test_a_body_that_does_not_come_is_408(here: Here) -> None:
    rest = await lives(here, order(b"o", b"Content-Length: 3"), BODY_S)
    assert rest.startswith(b"HTTP/1.1 408 ")


async def test_a_connection_ends_after_its_answer_when_the_site_closes(here: Here) -> None:
    here.doorway.is_closing = True
    said = await here.said(order(b"one", last=False) + order(b"two"))
    assert bodies(said) == [b"one"]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from([
                b"POST /o HTTP/1.1\r\n", b"GET /else HTTP/1.0\r\n", b"Host: a\r\n", b"\r\n\r\n",
                b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n",
                b"0\r\n\r\n", order(b"one", last=False), order(b"two"), b"Upgrade: x\r\n",
                b"Connection: upgrade\r\n", b"Expect: 100-continue\r\n",
                b"Content-Encoding: gzip\r\n",
            ]),
        ),
        max_size=8,
    )
)  # fmt: skip
async def test_whatever_comes_ends_in_whole_answers(parts: list[bytes]) -> None:
    one, loop = Here(), asyncio.get_running_loop()
    problems: list[object] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    server = await loop.create_server(
        lambda: Connection(one.doorway, lambda: one.now_s), "127.0.0.1", 0
    )
    one.port = server.sockets[0].getsockname()[1]
    try:
        said = await one.said(*parts, half=True)
    except OSError:
        said = b""
    assert said == b"" or said.startswith((b"HTTP/1.1 ", b"other: "))
    server.close()
    await until(lambda: not one.doorway.connections)
    assert problems == []
