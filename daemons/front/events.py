"""An answer that comes as server-sent events.

The head is sent with the first event, so whatever fails before is an ordinary error with its
status. After the head a failure is an event, and no ``[DONE]`` follows it. Every write has a
deadline: a client that does not read is gone.
"""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from daemons.runtime.http import Refusal

HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
DONE = b"data: [DONE]\n\n"


class ClientGone(ConnectionError):
    """The client closed the connection, or does not read."""


class EventStream:
    """Sends events of one request."""

    def __init__(self, request: web.Request, deadline_s: float) -> None:
        """``deadline_s`` is of the event loop's clock."""
        self._request = request
        self._deadline_s = deadline_s
        self.response: web.StreamResponse | None = None

    async def send(self, value: object) -> None:
        """Send one JSON value as an event.

        Raises:
            ClientGone: nobody reads.
        """
        await self._write(b"data: " + msgspec.json.encode(value) + b"\n\n")

    async def done(self) -> web.StreamResponse:
        """End well."""
        await self._write(DONE)
        return await self._end()

    async def fail(self, refusal: Refusal, **more: object) -> web.StreamResponse:
        """End with an error event, with ``more`` beside the error."""
        await self.send({**refusal.body(), **more})
        return await self._end()

    async def _write(self, raw: bytes) -> None:
        try:
            async with asyncio.timeout_at(self._deadline_s):
                if self.response is None:
                    response = web.StreamResponse(headers=HEADERS)
                    await response.prepare(self._request)
                    self.response = response
                await self.response.write(raw)
        except TimeoutError as error:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ClientGone("it does not read its answer") from error
        except ConnectionError as error:
            raise ClientGone("it closed the connection") from error

    async def _end(self) -> web.StreamResponse:
        assert self.response is not None
        try:
            await self.response.write_eof()
        except ConnectionError as error:
            raise ClientGone("it closed the connection") from error
        return self.response
