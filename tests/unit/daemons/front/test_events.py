"""Server-sent events, and clients that do not read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from daemons.front.events import ClientGone, EventStream
from daemons.protocol.causes import Cause, Failure
from daemons.runtime.http import Refusal, make_app, run_site

Serve = Callable[[EventStream], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(serve: Serve, patience_s: float = 30.0) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        deadline_s = asyncio.get_running_loop().time() + patience_s
        return await serve(EventStream(request, deadline_s))

    app = make_app()
    app.router.add_get("/", handle)
    site = await run_site(app, "127.0.0.1", 0, stop_s=0.2)
    try:
        yield site.url
    finally:
        await site.close()


async def read(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def test_events_end_with_the_end_mark() -> None:
    async def serve(out: EventStream) -> web.StreamResponse:
        await out.send({"n": 1})
        return await out.done()

    async with serving(serve) as url:
        assert await read(url) == (200, 'data: {"n":1}\n\ndata: [DONE]\n\n')


async def test_a_failure_is_an_event_without_an_end_mark() -> None:
    async def serve(out: EventStream) -> web.StreamResponse:
        await out.send({"n": 1})
        return await out.fail(Refusal.of(Failure(Cause.PEER_DIED, "x")), index=3)

    async with serving(serve) as url:
        status, text = await read(url)
        assert status == 200
        assert '"index":3' in text
        assert "peer.died" in text
        assert "[DONE]" not in text


async def test_the_head_is_sent_with_the_first_event_only() -> None:
    async def serve(out: EventStream) -> web.StreamResponse:
        assert out.response is None
        raise Refusal.of(Failure(Cause.QUEUE_FULL, "x"))

    async with serving(serve) as url:
        assert (await read(url))[0] == 503


async def test_a_client_that_does_not_read_is_gone_after_the_deadline() -> None:
    gone: asyncio.Future[ClientGone] = asyncio.get_running_loop().create_future()

    async def serve(out: EventStream) -> web.StreamResponse:
        try:
            while True:
                await out.send("x" * 1_000_000)
        except ClientGone as error:
            gone.set_result(error)
            raise

    async with serving(serve, patience_s=0.1) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(20):
            assert "does not read" in str(await gone)
        writer.close()


async def test_a_client_that_closes_cancels_whoever_answers_it() -> None:
    ended = asyncio.Event()

    async def serve(out: EventStream) -> web.StreamResponse:
        try:
            await out.send({})
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async with serving(serve) as url:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            await answer.content.readany()
        async with asyncio.timeout(20):
            await ended.wait()
