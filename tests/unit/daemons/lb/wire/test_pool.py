from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from daemons.lb.wire.line import Line
from daemons.lb.wire.pool import Pool

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
DEADLINE_S = 10.0
HOST = "127.0.0.1"


class Worker(asyncio.Protocol):
    """Answers each request at once; ``lines`` are its connections."""

    lines: list[Worker]

    def __init__(self, lines: list[Worker]) -> None:
        self.lines = lines
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.lines.append(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(ANSWER)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()


@pytest.fixture
async def place() -> AsyncIterator[tuple[int, list[Worker]]]:
    lines: list[Worker] = []
    server = await asyncio.get_running_loop().create_server(lambda: Worker(lines), HOST, 0)
    yield server.sockets[0].getsockname()[1], lines
    server.close()
    for line in lines:
        line.transport.abort()
    await asyncio.sleep(0)


async def asked(pool: Pool, port: int) -> Line:
    line = await pool.line(HOST, port, 5.0)
    line.ask((b"POST / HTTP/1.1\r\n\r\n",))
    await line.answered()
    assert (line.status, await line.part(), await line.part()) == (200, b"ok", b"")
    return line


async def test_a_line_is_used_again(place: tuple[int, list[Worker]], pool: Pool) -> None:
    port, lines = place
    for _ in range(3):
        pool.give_back(HOST, port, await asked(pool, port))
    assert (pool.opened, pool.reused, len(lines)) == (1, 2, 1)


async def test_a_line_that_its_worker_closed_is_not_used_again(
    place: tuple[int, list[Worker]], pool: Pool
) -> None:
    port, lines = place
    pool.give_back(HOST, port, await asked(pool, port))
    lines[0].transport.abort()
    await asyncio.wait_for(lines[0].closed.wait(), DEADLINE_S)
    pool.give_back(HOST, port, await asked(pool, port))
    assert (pool.opened, pool.reused) == (2, 0)


async def test_a_line_whose_answer_was_not_read_is_closed(
    place: tuple[int, list[Worker]], pool: Pool
) -> None:
    port, lines = place
    line = await pool.line(HOST, port, 5.0)
    line.ask((b"POST / HTTP/1.1\r\n\r\n",))
    pool.give_back(HOST, port, line)
    assert pool.idle == {} or not pool.idle[HOST, port]
    await asyncio.wait_for(lines[0].closed.wait(), DEADLINE_S)


async def test_idle_lines_are_bounded_in_number_and_time(
    place: tuple[int, list[Worker]], pool: Pool
) -> None:
    port, lines = place
    now_s = [0.0]
    pool.idle_limit, pool.clock = 1, lambda: now_s[0]
    two = [await asked(pool, port) for _ in range(2)]
    for line in two:
        pool.give_back(HOST, port, line)
    assert len(pool.idle[HOST, port]) == 1
    now_s[0] = pool.keep_s
    pool.sweep()
    assert pool.idle == {}
    for worker in lines:
        await asyncio.wait_for(worker.closed.wait(), DEADLINE_S)
    assert pool.lines == set()


async def test_where_nobody_listens_there_is_no_line(pool: Pool) -> None:
    with pytest.raises(OSError, match=r"111|refused"):
        await pool.line(HOST, 1, 5.0)
