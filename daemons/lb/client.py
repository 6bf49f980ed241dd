"""The client's end of a request: a whole answer, or a stream whose head goes out late."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.lb.leg import Answer, LegFailed, error_event
from daemons.lb.stories import Telling
from daemons.lb.wire.call import Call
from daemons.protocol.ids import room_hex
from daemons.runtime.http import Refusal

ROOM_HEADER = "X-PD-Room"  # hexadecimal, comma-separated, in the order of the items
ATTEMPT_HEADER = "X-PD-Attempt"  # which try it was, from the second on
DONE_EVENT = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Client:
    """Answers one request, once; every verb that sends raises ClientGone."""

    call: Call
    telling: Telling = field(init=False)  # of the try that the client gets to see
    has_all: bool = False  # the closing event is out: what the client does now is its own affair

    @property
    def room_header(self) -> dict[str, str]:
        """Return the header that names the rooms, for ``pdctl trace room``."""
        rooms = {ROOM_HEADER: ",".join(room_hex(room) for room in self.telling.rooms)}
        attempt = self.telling.attempt
        return rooms if attempt == 1 else {**rooms, ATTEMPT_HEADER: str(attempt)}

    async def begin(self) -> None:
        """Send the head of a stream."""
        self.put_begin()
        await self.call.flow.opened()

    def put_begin(self) -> None:
        """Send the head of a stream, and do not wait for the client to take it."""
        self.call.put_begin(self.room_header)
        self.telling.began()

    async def send(self, events: bytes) -> None:
        """Send complete events."""
        self.put(events)
        if self.call.flow.is_paused:
            await self.call.flow.opened()

    def put(self, events: bytes) -> None:
        """Send complete events, and do not wait."""
        self.call.put(events)
        self.has_all = self.has_all or events.endswith(DONE_EVENT)

    async def finish(self, answer: Answer) -> None:
        """End well."""
        self.put_end(answer)
        if self.call.flow.is_paused and answer.body:
            await self.call.flow.opened()

    def put_end(self, answer: Answer) -> None:
        """End well, and do not wait."""
        if self.call.status:
            self.call.end()
        else:
            headers = {**answer.headers, **self.room_header}
            self.call.put_answer(answer.status, headers, answer.body)

    async def refuse(self, failed: LegFailed) -> None:
        """Tell a failure as an answer of its own, or as the last event where the head is out."""
        said = failed.said
        refusal = Refusal.of(
            failed.failure, room=self.telling.rooms[0], attempt=self.telling.attempt
        )
        if self.call.status:
            await self.send(error_event(said, refusal))
            self.call.end()
        elif said is None:
            await tell(self.call, refusal, self.room_header)
        else:
            await self.call.answer(said.status, {**said.headers, **self.room_header}, said.body)


async def tell(call: Call, refusal: Refusal, headers: dict[str, str] | None = None) -> None:
    """Answer a refusal."""
    response = refusal.response()
    body = response.body
    assert isinstance(body, bytes)
    await call.answer(response.status, {**response.headers, **(headers or {})}, body)
