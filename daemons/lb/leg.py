"""One leg: one HTTP request to one worker, read as a whole or event by event.

A leg ends well, or raises :class:`LegFailed`; cancelling it closes its connection, which cancels
the request on the worker. An event stream ends well only with its end mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from daemons.lb.fleet import Worker
from daemons.protocol.causes import Cause, Failure
from daemons.runtime.http import Refusal, url_of

EVENT_BYTES_LIMIT = 64 << 20
ERROR_BYTES_LIMIT = 1 << 20
DONE = b"[DONE]"
EVENT_END = b"\n\n"
INLINE_BYTES = 1 << 20  # aiohttp warns when a larger body is sent in one piece
AFTER_DONE_S = 1.0  # from a stream's end mark to the end of its HTTP message
LEAVING = frozenset(
    {Cause.INSTANCE_STARTING, Cause.INSTANCE_DRAINING, Cause.INSTANCE_STOPPING}
)  # causes by which a worker says of itself that it takes no requests
WRONG_KEY = "it refuses our token: its key is not this one's"
PASSED_BACK = ("Content-Type", "Retry-After", "X-Request-ID")

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
class Leg:
    """A request to one worker."""

    session: aiohttp.ClientSession
    worker: Worker
    path: str
    body: bytes
    headers: Mapping[str, str]
    connect_s: float
    idle_s: float  # between two events of a stream
    begun: bool = False  # an event came
    refused: bool = False  # no connection came about
    broken: bool = False  # a connection was lost
    leaving: bool = False  # the worker says that it takes no requests

    async def run(self, take: TakeEvents) -> Answer:
        """Post; hand events on as they come, some complete ones at a time; return the answer.

        Raises:
            LegFailed: anything but a good answer that is complete.
        """
        try:
            response = await self.session.post(
                url_of(self.worker.host, self.worker.port) + self.path,
                data=io.BytesIO(self.body) if len(self.body) > INLINE_BYTES else self.body,
                headers=self.headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.connect_s),
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self.refused = True
            raise self._broke(_told(error), refused=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._broke(_told(error)) from error
        try:
            return await self._read(response, take)
        except (aiohttp.ClientError, OSError) as error:
            raise self._broke(_told(error)) from error
        finally:
            if not response.content.at_eof():
                response.close()
            response.release()

    async def _read(self, response: aiohttp.ClientResponse, take: TakeEvents) -> Answer:
        headers = {name: response.headers[name] for name in PASSED_BACK if name in response.headers}
        if response.status >= 300:
            body = await _up_to(response.content, ERROR_BYTES_LIMIT)
            said = Answer(response.status, body, headers)
            failure = _failure_in(said, self._stage)
            if failure.cause is Cause.REQUEST_UNAUTHORIZED:  # our fault, not the client's
                raise self._broke(WRONG_KEY, cause=Cause.LB_KEY_MISMATCH)
            self.leaving = failure.cause in LEAVING and failure.peer == self.worker.name
            raise LegFailed(failure, said)
        if response.content_type != "text/event-stream":
            return Answer(response.status, await response.read(), headers)
        await self._read_events(response.content, take)
        return Answer(response.status, b"", headers)

    async def _read_events(self, stream: aiohttp.StreamReader, take: TakeEvents) -> None:
        rest = b""
        while True:
            try:
                async with asyncio.timeout(self.idle_s if self.begun else None):
                    chunk = await stream.readany()
            except TimeoutError:
                raise self._broke(
                    f"no event for {self.idle_s:g} s", cause=Cause.LB_TIMEOUT
                ) from None
            if not chunk:
                raise self._broke("the stream ended without its end mark")
            *events, rest = (rest + chunk).split(EVENT_END)
            if len(rest) > EVENT_BYTES_LIMIT:
                raise self._broke(f"an event of more than {EVENT_BYTES_LIMIT} bytes")
            if events and await self._hand_on(events, take):
                await _to_the_end(stream)
                return

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


async def _to_the_end(stream: aiohttp.StreamReader) -> None:
    """Read what follows the end mark, so that the worker does not see its client leave early."""
    with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(AFTER_DONE_S):
            while await stream.readany():
                pass


async def _up_to(stream: aiohttp.StreamReader, limit: int) -> bytes:
    body = b""
    while len(body) < limit and (chunk := await stream.readany()):
        body += chunk
    return body[:limit]


def _told(error: Exception) -> str:
    """Return what happened to a connection, without the prose of libraries."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "no connection in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return f"no connection: {os.strerror(number) if number else error.os_error}"
    return f"connection lost ({type(error).__name__})"
