"""The client's end of a request: a whole answer, or a stream whose head goes out late."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web

from daemons.lb.dispatch import ClientGone
from daemons.lb.leg import Answer, LegFailed, error_event
from daemons.lb.stories import ATTEMPT, Telling
from daemons.runtime.http import Refusal


@dataclass(slots=True)
class Client:
    """Answers one request, once; every verb that sends raises ClientGone."""

    request: web.Request
    telling: Telling
    response: web.StreamResponse = field(default_factory=web.StreamResponse)

    async def begin(self) -> None:
        """Send the head of a stream."""
        self.response.headers["Content-Type"] = "text/event-stream; charset=utf-8"
        self.response.headers["Cache-Control"] = "no-cache"
        try:
            await self.response.prepare(self.request)
        except ConnectionError as error:
            raise ClientGone from error
        self.telling.began()

    async def send(self, events: bytes) -> None:
        """Send complete events."""
        try:
            await self.response.write(events)
        except ConnectionError as error:
            raise ClientGone from error

    async def finish(self, answer: Answer) -> web.StreamResponse:
        """End well."""
        if self.response.prepared:
            return await self._end()
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    async def refuse(self, failed: LegFailed) -> web.StreamResponse:
        """Tell a failure as an answer of its own, or as the last event where the head is out."""
        said = failed.said
        refusal = Refusal.of(failed.failure, room=self.telling.rooms[0], attempt=ATTEMPT)
        if self.response.prepared:
            await self.send(error_event(said, refusal))
            return await self._end()
        if said is None:
            return refusal.response()
        return web.Response(status=said.status, body=said.body, headers=said.headers)

    async def _end(self) -> web.StreamResponse:
        try:
            await self.response.write_eof()
        except ConnectionError as error:
            raise ClientGone from error
        return self.response
