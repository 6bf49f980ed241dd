"""HTTP that the daemons share: the shape of an error, JSON in and out, and a site.

Every error that leaves a daemon has one shape, ``{"error": {message, type, param, code, room,
attempt, stage, peer, cause, retry}}``; ``param`` is the field that is wrong, where one is, and
``code`` is the HTTP status, so that it is there too when the error comes as an event of a stream.
A body is read only up to the application's limit.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.ids import room_hex
from daemons.runtime.door import CONNECTIONS_LIMIT, Door
from daemons.runtime.log import logger

BODY_BYTES_LIMIT = 32 << 20
RETRY_AFTER_S = 1  # told with every 503 that names no time of its own
STOP_S = 5.0  # open requests may end for so long when a site closes
IDLE_S = 75.0  # a connection between two requests
BODY_S = 60.0  # a request's body is here within
DOOR = web.AppKey("door", Door)
UNREAD_S = 120.0  # a client that reads nothing, or is gone without a word, is cut after so long

_PARAM = re.compile(
    r"body: .*missing required field `(\w+)`"
    r"|body: .*at `\$\.([^`]+)`"
    r"|Unknown parameter: '([^']+)'"
    r"|(?!body:)([A-Za-z_][\w.\[\]]*): "
)

T = TypeVar("T")
Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Refusal(Exception):
    """An HTTP answer that is an error; raise it anywhere below :func:`make_app`'s middleware."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        failure: Failure | None = None,
        room: int | None = None,
        attempt: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.failure = failure
        self.room = room
        self.attempt = attempt
        self.retry_after_s = retry_after_s

    @classmethod
    def of(
        cls,
        failure: Failure,
        *,
        room: int | None = None,
        attempt: int | None = None,
        retry_after_s: float | None = None,
    ) -> Refusal:
        """Return the answer that carries ``failure``, with the status of its cause."""
        return cls(
            failure.http_status,
            str(failure),
            failure=failure,
            room=room,
            attempt=attempt,
            retry_after_s=retry_after_s,
        )

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        failure = self.failure
        message = self.message
        if self.room is not None:
            message = f"room {room_hex(self.room)}: {message}"
        return {
            "error": {
                "message": message,
                "type": "invalid_request_error" if self.status < 500 else "server_error",
                "param": param_of(self.message) if self.status == 400 else None,
                "code": self.status,
                "room": self.room,
                "attempt": self.attempt,
                "stage": failure.stage if failure else None,
                "peer": failure.peer or None if failure else None,
                "cause": failure.cause.value if failure else None,
                "retry": failure.retry_is_sensible if failure else self.status == 503,
            }
        }

    def response(self) -> web.Response:
        """Return the whole answer."""
        headers = {}
        if self.status in (429, 503) or self.retry_after_s is not None:
            after_s = RETRY_AFTER_S if self.retry_after_s is None else self.retry_after_s
            headers["Retry-After"] = str(max(1, math.ceil(after_s)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return json_response(self.body(), status=self.status, headers=headers)


def invalid(message: str, *, stage: str = "intake") -> Refusal:
    """Return the 400 that tells a client what is wrong with its request."""
    return Refusal(400, message, failure=Failure(Cause.REQUEST_INVALID, stage, "", message))


def param_of(message: str) -> str | None:
    """Return the field that a refusal is about: messages name it first, msgspec's at their end."""
    found = _PARAM.match(message)
    return next((one for one in found.groups() if one), None) if found else None


def json_response(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return ``value`` (anything that msgspec encodes) as a JSON answer."""
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        headers=headers,
        content_type="application/json",
    )


def metrics_response(registry: CollectorRegistry) -> web.Response:
    """Return a registry in Prometheus' text form."""
    return web.Response(
        body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )


async def read_json(request: web.Request, form: type[T]) -> T:
    """Return the body as ``form``, checked strictly.

    Raises:
        Refusal: 400 with the reason and its place; 413 beyond the application's limit.
    """
    raw = await read_body(request)
    try:
        return msgspec.json.decode(raw, type=form)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"body: {error}") from error


async def read_body(request: web.Request) -> bytes:
    """Return the body, decompressed.

    Raises:
        Refusal: 400, it is not whole or not in the encoding that its head names; 408, it does not
            come within ``BODY_S``; 413, it is too long or says that it will be.
    """
    said_bytes = request.content_length or 0
    if said_bytes > request.client_max_size:
        raise Refusal(413, f"body: {said_bytes} bytes, the limit is {request.client_max_size}")
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError as error:
        raise Refusal(408, f"body: not here within {BODY_S:g} s") from error
    except (web.RequestPayloadError, web.PayloadAccessError) as error:
        raise invalid(f"body: {error}") from error


@web.middleware
async def errors_in_shape(request: web.Request, handler: Answering) -> web.StreamResponse:
    """Give every error of the routes below the one shape; log those nobody expected."""
    if DOOR in request.app:
        request.app[DOOR].passed(request)
    try:
        return await handler(request)
    except Refusal as refusal:
        return refusal.response()
    except web.HTTPException as error:
        if error.status < 400:
            raise
        shaped = Refusal(error.status, f"{error.reason}: {request.method} {request.path}")
        response = shaped.response()
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except Exception as error:  # noqa: BLE001 - outermost: the request fails, not the daemon
        logger().exception("request.broke", method=request.method, path=request.path)
        failure = Failure(Cause.INTERNAL, "http", "", f"{type(error).__name__}: {error}")
        return Refusal.of(failure).response()


def make_app(
    *,
    body_bytes_limit: int = BODY_BYTES_LIMIT,
    connections_limit: int = CONNECTIONS_LIMIT,
    guard: Middleware | None = None,
) -> web.Application:
    """Return an empty application with its limits; ``guard`` stands before its routes."""
    inner: list[Middleware] = [] if guard is None else [guard]
    app = web.Application(client_max_size=body_bytes_limit, middlewares=[errors_in_shape, *inner])
    app[DOOR] = Door(connections_limit)
    return app


@dataclass(frozen=True, slots=True)
class Site:
    """A listening application."""

    runner: web.AppRunner
    host: str
    port: int  # the bound one
    listener: asyncio.Server
    door: Door
    sweeping: asyncio.Task[None]

    @property
    def url(self) -> str:
        """Base URL of the bound address."""
        return url_of(self.host, self.port)

    async def close(self) -> None:
        """Stop listening, let open requests end for ``stop_s``, then cancel them."""
        server = self.runner.server
        self.listener.close()
        self.door.is_closed = True
        await self.runner.cleanup()
        self.sweeping.cancel()
        await asyncio.gather(self.sweeping, return_exceptions=True)
        if server is not None:
            self.door.clear(server)
            await asyncio.sleep(0)  # a cut connection is closed one turn of the loop later


async def run_site(
    app: web.Application,
    host: str,
    port: int,
    sock: socket.socket | None = None,
    *,
    stop_s: float = STOP_S,
) -> Site:
    """Serve ``app`` on ``host`` and ``port`` (0: any free one), or on an open socket.

    A client that goes away cancels its request's handler.

    Raises:
        OSError: the address cannot be bound.
    """
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=stop_s,
        keepalive_timeout=IDLE_S,
    )
    await runner.setup()
    server, door = runner.server, app.get(DOOR) or Door()
    assert server is not None
    try:
        listening = sock if sock is not None else bound(host, port)
        # connections inherit it; else what a client never reads keeps its connection for ever
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1000))
        listener = await asyncio.get_running_loop().create_server(
            lambda: door.greet(server), sock=listening, backlog=1024
        )
    except OSError:
        await runner.cleanup()
        raise
    sweeping = asyncio.create_task(door.keep_sweeping(server), name="door")
    return Site(runner, host, listening.getsockname()[1], listener, door, sweeping)


def url_of(host: str, port: int) -> str:
    """Return ``http://host:port``, with brackets around an IPv6 address."""
    return f"http://{host_in_url(host)}:{port}"


def host_in_url(host: str) -> str:
    """Return ``host`` as it stands in a URL."""
    try:
        version = ipaddress.ip_address(host.split("%")[0]).version
    except ValueError:
        return host
    return f"[{host}]" if version == 6 else host


def bound(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a socket that is bound and does not listen yet; raises OSError.

    ``shared`` lets other processes bind the same port, of which each gets its part of connections.
    """
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        where = f"cannot listen on {url_of(host, port)}: {error.strerror}"
        raise OSError(error.errno, where) from error
    return bound
