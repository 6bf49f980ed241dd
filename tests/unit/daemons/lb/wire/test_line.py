from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from daemons.lb.wire.line import UNREAD_BYTES_LIMIT, Line, LineLost
from tests.unit.daemons.lb.conftest import DEADLINE_S, until

Talk = Callable[[bytes], Awaitable[None]]
Begin = Callable[[], Awaitable[tuple[Line, asyncio.StreamWriter]]]


@pytest.fixture
async def begin() -> AsyncIterator[Begin]:
    """Return a line that has asked, and its worker's end."""
    ends: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    writers: list[asyncio.StreamWriter] = []

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        ends.put_nowait(writer)

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    lines: set[Line] = set()

    async def make() -> tuple[Line, asyncio.StreamWriter]:
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(lambda: Line(lines), "127.0.0.1", port)
        line.ask((b"POST / HTTP/1.1\r\n\r\n",))
        return line, await asyncio.wait_for(ends.get(), DEADLINE_S)

    yield make
    server.close()
    for line in list(lines):
        line.abort()
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)


async def whole(line: Line) -> bytes:
    body = b""
    async with asyncio.timeout(DEADLINE_S):
        await line.answered()
        while part := await line.part():
            body += part
    return body


@pytest.mark.parametrize(
    ("answer", "body", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 C\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\nok\r\n0\r\n\r\n",
            b"ok",
            True,
        ),
    ],
)
async def test_an_answer_is_read_in_any_pieces(
    begin: Begin, answer: bytes, body: bytes, *, reusable: bool
) -> None:
    for size in (1, 7, len(answer)):
        line, worker = await begin()
        for start in range(0, len(answer), size):
            worker.write(answer[start : start + size])
            await worker.drain()
        assert await whole(line) == body
        assert line.is_reusable is reusable


async def test_an_answer_without_a_length_ends_with_its_connection(begin: Begin) -> None:
    line, worker = await begin()
    worker.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    worker.close()
    assert await whole(line) == b"all of it"
    assert not line.is_reusable


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * (65 << 10) + b"\r\n\r\n",
    ],
)
async def test_an_answer_that_is_not_whole_or_none_is_lost(begin: Begin, answer: bytes) -> None:
    line, worker = await begin()
    worker.write(answer)
    worker.close()
    with pytest.raises(LineLost):
        await whole(line)
    assert not line.is_reusable


async def test_a_worker_that_speaks_without_being_asked_loses_its_line(begin: Begin) -> None:
    line, worker = await begin()
    worker.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert await whole(line) == b"ok"
    line.rest()
    worker.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    await until(lambda: line.is_lost)
    assert not line.is_quiet


async def test_who_does_not_read_holds_the_worker_back(begin: Begin) -> None:
    line, worker = await begin()
    size = 64 << 20
    worker.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    await line.answered()
    worker.write(b"x" * size)
    await until(lambda: not line.transport.is_reading())
    part = await line.part()
    assert UNREAD_BYTES_LIMIT < len(part) < size
    rest = 0
    while more := await line.part():
        rest += len(more)
    assert len(part) + rest == size
