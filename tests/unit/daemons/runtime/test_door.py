from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from daemons.runtime.door import TURNED_AWAY, Door, TurnedAway
from daemons.runtime.http import DOOR, Site, json_response, make_app, run_site

DEADLINE_S = 10.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def say_ok(_: web.Request) -> web.Response:
    return json_response({"ok": True})


@asynccontextmanager
async def serving(limit: int = 100) -> AsyncIterator[tuple[Site, Door]]:
    app = make_app(connections_limit=limit)
    app.router.add_get("/health", say_ok)
    door = app[DOOR]
    site = await run_site(app, "127.0.0.1", 0, stop_s=0.1)
    try:
        yield site, door
    finally:
        await site.close()


async def opened(site: Site) -> Streams:
    return await asyncio.open_connection("127.0.0.1", site.port)


async def told(streams: Streams) -> bytes:
    reader, writer = streams
    try:
        return await asyncio.wait_for(reader.read(), DEADLINE_S)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def request(streams: Streams) -> bytes:
    reader, writer = streams
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_S)
    await reader.readexactly(len(b'{"ok":true}'))
    return head


async def seen(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - aiohttp tells of no such event
            await asyncio.sleep(0)


async def test_one_connection_too_many_is_answered_503_and_closed() -> None:
    async with serving(limit=2) as (site, door):
        first, second = await opened(site), await opened(site)
        assert b"200 OK" in await request(first)
        assert b"200 OK" in await request(second)
        assert await told(await opened(site)) == TURNED_AWAY
        assert door.turned_away == 1
        assert b"200 OK" in await request(first)  # those inside are served on
        for _, writer in (first, second):
            writer.close()
            await writer.wait_closed()


async def test_a_place_that_is_left_is_given_to_the_next() -> None:
    async with serving(limit=1) as (site, _):
        first = await opened(site)
        assert b"200 OK" in await request(first)
        first[1].close()
        await first[1].wait_closed()
        async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{site.url}/health") as response:
                    if response.status == 200:
                        return


@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\nX: "])
async def test_who_sends_no_whole_request_is_cut_in_time(said: bytes) -> None:
    async with serving() as (site, door):
        streams = await opened(site)
        streams[1].write(said)
        server = site.runner.server
        assert server is not None
        await seen(lambda: bool(server.connections))
        door.sweep(server, 100.0)
        door.sweep(server, 100.0 + door.head_s - 0.1)
        assert door.cut == 0
        door.sweep(server, 100.0 + door.head_s)
        assert door.cut == 1
        with contextlib.suppress(ConnectionResetError):
            assert await told(streams) == b""


async def test_who_has_been_served_once_may_be_silent() -> None:
    async with serving() as (site, door):
        streams = await opened(site)
        await request(streams)
        server = site.runner.server
        assert server is not None
        for now_s in (0.0, 1000.0, 2000.0):
            door.sweep(server, now_s)
        assert door.cut == 0
        assert b"200 OK" in await request(streams)
        streams[1].close()
        await streams[1].wait_closed()


async def test_nothing_is_kept_about_connections_that_are_gone() -> None:
    async with serving() as (site, door):
        for _ in range(20):
            streams = await opened(site)
            await request(streams)
            streams[1].close()
            await streams[1].wait_closed()
        server = site.runner.server
        assert server is not None
        await seen(lambda: not server.connections)
        door.sweep(server, 0.0)
        assert not door._served
        assert not door._since_s


def test_the_answer_at_the_door_is_whole_http_and_json() -> None:
    head, _, body = TURNED_AWAY.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body)["error"]["code"] == 503


async def test_who_comes_while_a_site_closes_is_turned_away_and_nobody_is_left() -> None:
    async with serving() as (site, door):
        server = site.runner.server
        assert server is not None
        streams = await opened(site)
        await request(streams)
        await site.close()
        assert await told(streams) == b""
        assert server.connections == []
        assert isinstance(door.greet(server), TurnedAway)
