from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemons.lb.wire.tunnel import Tunnel
from tests.unit.daemons.lb.conftest import DEADLINE_S


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    """A port whose connections are handed on to a process that answers in capitals."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(1 << 16):
            writer.write(part.upper())
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        ended.set()

    far = await asyncio.start_unix_server(answer, str(tmp_path / "far"))
    near = await loop.create_server(lambda: Tunnel(str(tmp_path / "far")), "127.0.0.1", 0)
    yield near.sockets[0].getsockname()[1]
    near.close()
    far.close()
    await asyncio.wait_for(ended.wait(), DEADLINE_S)


async def test_bytes_go_both_ways_however_many(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    size = 8 << 20
    writer.write(b"a" * size)
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.readexactly(size) == b"A" * size
    writer.close()
    await writer.wait_closed()


async def test_where_nobody_answers_the_client_is_let_go(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    near = await loop.create_server(lambda: Tunnel(str(tmp_path / "none")), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*near.sockets[0].getsockname())
    said = await asyncio.wait_for(reader.read(), DEADLINE_S)
    assert said.startswith(b"HTTP/1.1 503 ")
    writer.close()
    near.close()
