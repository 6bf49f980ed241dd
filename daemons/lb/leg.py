"""One leg: one HTTP request to one worker, read as a whole or event by event.

A leg ends well, or raises :class:`LegFailed`; cancelling it closes its connection, which cancels
the request on the worker. An event stream ends well only with its end mark.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from daemons.lb.fleet import Worker
from daemons.lb.wire.line import Line, LineLost
from daemons.lb.wire.pool import Pool
from daemons.protocol.causes import Cause, Failure
from daemons.runtime.http import Refusal, host_in_url

EVENT_BYTES_LIMIT = 64 << 20
ERROR_BYTES_LIMIT = 1 << 20
DONE = b"[DONE]"
EVENT_END = b"\n\n"
AFTER_DONE_S = 1.0  # from a stream's end mark to the end of its HTTP message
LEAVING = frozenset(
    {Cause.INSTANCE_STARTING, Cause.INSTANCE_DRAINING, Cause.INSTANCE_STOPPING}
)  # causes by which a worker says of itself that it takes no requests
WRONG_KEY = "it refuses our token: its key is not this one's"
PASSED_BACK = ("Content-Type", "Retry-After", "X-Request-ID")
_PASSED_BACK = tuple((name, name.lower()) for name in PASSED_BACK)

TakeEvents = Callable[[list[bytes]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker answered; ``body`` is empty when it came as events."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class LegFailed(Exception):
    """A leg ended badly: by the worker's own word, or (``said`` None) because it broke."""

    def __init__(
        self, failure: Failure, said: Answer | None = None, *, refused: bool = False
    ) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.said = said
        self.refused = refused  # no connection came about: the worker never saw the request


@dataclass(slots=True)
class Silence:
    """Ends a line on which nothing comes between two events; one timer, not one for each event."""

    line: Line
    limit_s: float
    was_too_long: bool = False
    _since_s: float | None = None  # None: nobody waits
    _timer: asyncio.TimerHandle | None = None

    def begin(self, since_s: float | None = None) -> None:
        """Wait for an event from now on, or since then."""
        loop = asyncio.get_running_loop()
        self._since_s = loop.time() if since_s is None else since_s
        if self._timer is None:
            self._timer = loop.call_at(self._since_s + self.limit_s, self._look)

    def pause(self) -> None:
        """An event is here."""
        self._since_s = None

    def end(self) -> None:
        """Wait no more."""
        self._since_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        since_s = now_s if self._since_s is None else self._since_s
        if self._since_s is not None and now_s - since_s >= self.limit_s:
            self.was_too_long = True
            self._timer = None
            self.line.abort()
        else:
            self._timer = loop.call_at(since_s + self.limit_s, self._look)


@dataclass(slots=True)
class Leg:
    """A request to one worker."""

    pool: Pool
    worker: Worker
    path: str
    body: bytes
    fields: bytes  # of the head, as lines
    connect_s: float
    idle_s: float  # between two events of a stream
    begun: bool = False  # an event came
    refused: bool = False  # no connection came about
    broken: bool = False  # a connection was lost
    leaving: bool = False  # the worker says that it takes no requests
    line: Line | None = None  # on which it was asked
    has_all: bool = False  # the end mark was read
    heard_s: float | None = None  # when the last event came, by the loop's clock

    async def run(self, take: TakeEvents) -> Answer:
        """Post; hand events on as they come, some complete ones at a time; return the answer.

        Raises:
            LegFailed: anything but a good answer that is complete.
        """
        line = self.line or await self._asked()
        line.heard = None
        try:
            await line.answered()
            return await self._read(line, take)
        except LineLost as error:
            raise self._broke(str(error)) from error
        finally:
            self.drop()

    def ask(self, line: Line) -> None:
        """Post on a connection."""
        self.line = line
        line.ask((self._head(), self.body))

    def drop(self) -> None:
        """Give the connection back; it ends if its answer has not."""
        if self.line is not None:
            line, self.line = self.line, None
            self.pool.give_back(self.worker.host, self.worker.port, line)

    async def _asked(self) -> Line:
        worker = self.worker
        try:
            line = await self.pool.line(worker.host, worker.port, self.connect_s)
        except TimeoutError as error:  # before OSError, whose kind it is
            self.refused = True
            raise self._broke("no connection in time", refused=True) from error
        except OSError as error:
            self.refused = True
            number = error.errno or 0  # of the resolver they are negative
            why = os.strerror(number) if number > 0 else str(error)
            raise self._broke(f"no connection: {why}", refused=True) from error
        self.ask(line)
        return line

    def _head(self) -> bytes:
        begun = _begun(self.path, self.worker.host, self.worker.port)
        return b"%b%bContent-Length: %d\r\n\r\n" % (begun, self.fields, len(self.body))

    async def _read(self, line: Line, take: TakeEvents) -> Answer:
        headers = passed_back(line)
        if line.status >= 300:
            body = await _up_to(line, ERROR_BYTES_LIMIT)
            told = Answer(line.status, body, headers)
            failure = _failure_in(told, self._stage)
            if failure.cause is Cause.REQUEST_UNAUTHORIZED:  # our fault, not the client's
                raise self._broke(WRONG_KEY, cause=Cause.LB_KEY_MISMATCH)
            self.leaving = failure.cause in LEAVING and failure.peer == self.worker.name
            raise LegFailed(failure, told)
        if not is_stream(line):
            return Answer(line.status, await _whole(line), headers)
        await self._read_events(line, take)
        return Answer(line.status, b"", headers)

    async def _read_events(self, line: Line, take: TakeEvents) -> None:
        if self.has_all:
            await _to_the_end(line)
            return
        rest = b""
        silence = Silence(line, self.idle_s)
        if self.heard_s is not None:
            silence.begin(self.heard_s)
        try:
            while True:
                chunk = await line.part()
                if not chunk:
                    raise self._broke("the stream ended without its end mark")
                *events, rest = (rest + chunk if rest else chunk).split(EVENT_END)
                if len(rest) > EVENT_BYTES_LIMIT:
                    raise self._broke(f"an event of more than {EVENT_BYTES_LIMIT} bytes")
                if events:
                    silence.pause()
                    if await self._hand_on(events, take):
                        await _to_the_end(line)
                        return
                    silence.begin()
        except LineLost:
            if silence.was_too_long:
                raise self._broke(
                    f"no event for {self.idle_s:g} s", cause=Cause.LB_TIMEOUT
                ) from None
            raise
        finally:
            silence.end()

    async def _hand_on(self, events: list[bytes], take: TakeEvents) -> bool:
        """Pass events on up to an error or the end mark; say whether the end mark came."""
        for index, event in enumerate(events):
            payload = event[5:].strip() if event.startswith(b"data:") else b""
            ended = payload == DONE
            if not ended and not payload.startswith(b'{"error"'):
                continue
            good = events[: index + 1] if ended else events[:index]
            if good:
                self.begun = True
                await take(good)
            if not ended:
                said = _said_in_stream(payload)
                raise LegFailed(_failure_in(said, self._stage), said)
            return True
        self.begun = True
        await take(events)
        return False

    @property
    def _stage(self) -> str:
        return "stream" if self.begun else "dispatch"

    def _broke(
        self, detail: str, *, refused: bool = False, cause: Cause = Cause.LB_WORKER_GONE
    ) -> LegFailed:
        worker = self.worker
        self.broken = not refused and cause is Cause.LB_WORKER_GONE
        where = f"{worker.role.value} at {worker.host}:{worker.port}: {detail}"
        return LegFailed(Failure(cause, self._stage, worker.name, where), refused=refused)


@lru_cache(1024)  # paths times workers
def _begun(path: str, host: str, port: int) -> bytes:
    """Return a head as far as it is the same for every request."""
    return f"POST {path} HTTP/1.1\r\nHost: {host_in_url(host)}:{port}\r\n".encode("latin-1")


def passed_back(line: Line) -> dict[str, str]:
    """Return the fields of an answer that go to the client."""
    said = line.headers
    return {name: said[low] for name, low in _PASSED_BACK if low in said}


def is_stream(line: Line) -> bool:
    """Say whether an answer comes as events."""
    return line.headers.get("content-type", "").startswith("text/event-stream")


def error_event(said: Answer | None, refusal: Refusal) -> bytes:
    """Return a failure as the last event of a stream, in the worker's own words if there are."""
    error = _error_in(said.body) if said is not None else None
    body = {"error": error} if error is not None else refusal.body()
    return b"data: " + msgspec.json.encode(body) + EVENT_END


def _failure_in(said: Answer, stage: str) -> Failure:
    """Return the failure that an error answer names, or the nearest one to it."""
    error = _error_in(said.body) or {}
    detail = str(error.get("message") or said.body[:500].decode(errors="replace"))
    try:
        cause = Cause(str(error.get("cause")))
    except ValueError:
        cause = Cause.REQUEST_INVALID if said.status < 500 else Cause.INTERNAL
    told = Failure(cause, str(error.get("stage") or stage), str(error.get("peer") or ""))
    _, known, rest = detail.partition(str(told))  # the message of our own workers begins so
    return msgspec.structs.replace(told, detail=rest.removeprefix(": ") if known else detail)


def _said_in_stream(payload: bytes) -> Answer:
    code = (_error_in(payload) or {}).get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return Answer(status, payload, {"Content-Type": "application/json"})


def _error_in(body: bytes) -> dict[str, Any] | None:
    try:
        said = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    error = said.get("error") if isinstance(said, dict) else None
    return error if isinstance(error, dict) else None


async def drop_events(_: list[bytes]) -> None:
    """Take events that nobody needs."""


async def _to_the_end(line: Line) -> None:
    """Read what follows the end mark, so that the worker does not see its client leave early."""
    late = asyncio.get_running_loop().call_later(AFTER_DONE_S, line.abort)
    try:
        while await line.part():
            pass
    except LineLost:
        pass
    finally:
        late.cancel()


async def _up_to(line: Line, limit: int) -> bytes:
    body = b""
    while len(body) < limit and (part := await line.part()):
        body += part
    return body[:limit]


async def _whole(line: Line) -> bytes:
    parts = []
    while part := await line.part():
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
