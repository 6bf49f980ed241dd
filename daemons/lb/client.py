"""The client's end of a request: a whole answer, or a stream whose head goes out late."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web

from daemons.lb.dispatch import ClientGone
from daemons.lb.leg import Answer, LegFailed, error_event
from daemons.lb.stories import Telling
from daemons.protocol.ids import room_hex
from daemons.runtime.http import Refusal

ROOM_HEADER = "X-PD-Room"  # hexadecimal, comma-separated, in the order of the items
ATTEMPT_HEADER = "X-PD-Attempt"  # which try it was, from the second on
DONE_EVENT = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Client:
    """Answers one request, once; every verb that sends raises ClientGone."""

    request: web.Request
    telling: Telling = field(init=False)  # of the try that the client gets to see
    response: web.StreamResponse = field(default_factory=web.StreamResponse)
    has_all: bool = False  # the closing event is out: what the client does now is its own affair

    @property
    def room_header(self) -> dict[str, str]:
        """Return the header that names the rooms, for ``pdctl trace room``."""
        rooms = {ROOM_HEADER: ",".join(room_hex(room) for room in self.telling.rooms)}
        attempt = self.telling.attempt
        return rooms if attempt == 1 else {**rooms, ATTEMPT_HEADER: str(attempt)}

    async def begin(self) -> None:
        """Send the head of a stream."""
        self.response.headers["Content-Type"] = "text/event-stream; charset=utf-8"
        self.response.headers["Cache-Control"] = "no-cache"
        self.response.headers.update(self.room_header)
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
        self.has_all = self.has_all or events.endswith(DONE_EVENT)

    async def finish(self, answer: Answer) -> web.StreamResponse:
        """End well."""
        if self.response.prepared:
            return await self._end()
        headers = {**answer.headers, **self.room_header}
        return web.Response(status=answer.status, body=answer.body, headers=headers)

    async def refuse(self, failed: LegFailed) -> web.StreamResponse:
        """Tell a failure as an answer of its own, or as the last event where the head is out."""
        said = failed.said
        refusal = Refusal.of(
            failed.failure, room=self.telling.rooms[0], attempt=self.telling.attempt
        )
        if self.response.prepared:
            await self.send(error_event(said, refusal))
            return await self._end()
        if said is None:
            response = refusal.response()
            response.headers.update(self.room_header)
            return response
        headers = {**said.headers, **self.room_header}
        return web.Response(status=said.status, body=said.body, headers=headers)

    async def _end(self) -> web.StreamResponse:
        try:
            await self.response.write_eof()
        except ConnectionError as error:
            raise ClientGone from error
        return self.response
