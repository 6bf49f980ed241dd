"""The bare proxy that pd-lb is measured beside: aiohttp on both sides, both legs, no more."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random

import aiohttp
from aiohttp import web


def app_of(prefill: str, decode: str) -> web.Application:
    """Return the application."""

    async def post(request: web.Request) -> web.StreamResponse:
        session: aiohttp.ClientSession = request.app["session"]
        body = json.loads(await request.read())
        body |= {"bootstrap_host": "127.0.0.1", "bootstrap_room": random.getrandbits(53)}
        raw, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}

        async def drop() -> None:
            async with session.post(prefill + request.path, data=raw, headers=headers) as answer:
                await answer.read()

        dropped = asyncio.create_task(drop())
        async with session.post(decode + request.path, data=raw, headers=headers) as answer:
            if answer.content_type != "text/event-stream":
                await dropped
                return web.Response(
                    body=await answer.read(), status=answer.status, content_type=answer.content_type
                )
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
        await dropped
        return response

    async def open_session(app: web.Application) -> None:
        app["session"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    app = web.Application()
    app.router.add_post("/generate", post)
    app.router.add_get("/health", lambda _: asyncio.sleep(0, web.Response(text="ok")))
    app.on_startup.append(open_session)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--prefill", "--decode"):
        parser.add_argument(name, required=True)
    parser.add_argument("--port", type=int, required=True)
    flags = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        web.run_app(
            app_of(flags.prefill, flags.decode), host="127.0.0.1", port=flags.port,
            access_log=None, print=None, backlog=4096,
        )  # fmt: skip
