"""All routes of pd-lb."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware

from daemons.lb.aside import Aside
from daemons.lb.cors import cors_middleware
from daemons.lb.lead import Share
from daemons.lb.order import CHAT, COMPLETIONS, GENERATE
from daemons.lb.overview import Overview
from daemons.lb.service import HEALTH_GENERATE, ORDERS, Service
from daemons.lb.wire.connection import Doorway
from daemons.lb.wire.site import FrontSite, Tls, run_front
from daemons.lb.wire.tunnel import Tunnel
from daemons.runtime import openapi
from daemons.runtime.door import TurnedAway
from daemons.runtime.http import STOP_S, Answering, Refusal, make_app

# What needs no token of ours: clients' requests. All else shows or changes the cluster.
OPEN_TO_CLIENTS = (
    GENERATE,
    COMPLETIONS,
    CHAT,
    HEALTH_GENERATE,
    "/abort_request",  # of one's own; "all" wants the token
    "/v1/models",
    "/get_model_info",
    openapi.DOCUMENT_PATH,
    openapi.PAGE_PATH,
)


def app_of(service: Service) -> web.Application:
    """Return the application."""
    app = make_app(
        body_bytes_limit=service.config.max_body_bytes,
        connections_limit=service.config.max_connections,
        guard=service.guard.middleware,
    )
    app.add_routes([web.route(method, path, _misspelt) for method, path in ORDERS])
    app.middlewares.append(_keyed(service))
    if service.config.cors_origins:
        app.middlewares.insert(0, cors_middleware(service.config.cors_origins))
    app.middlewares.insert(0, _last)
    for part in (Aside(service), Overview(service)):
        app.add_routes(part.routes())
    openapi.add_to(app, openapi.document("pd-lb", service.version, openapi.CLIENTS))
    return app


def doorway_of(service: Service) -> Doorway:
    """Return what the connections of its clients share."""
    return Doorway(
        service.serve,
        lambda method, path: (method, path) in ORDERS,
        TurnedAway,
        service.config.max_body_bytes,
        start=service.express.start,
    )


async def run_lb(
    service: Service,
    host: str,
    port: int,
    sockets: Sequence[socket.socket] = (),
    *,
    tls: Tls | None = None,
    share: Share | None = None,
    stop_s: float = STOP_S,
) -> FrontSite:
    """Serve clients and operators on one port; raises OSError."""
    site = await run_front(
        app_of(service), doorway_of(service), host, port, sockets, tls=tls, stop_s=stop_s
    )
    if share is not None:
        lead = share.lead
        site.doorway.hand_over = lambda: Tunnel(lead)
        await site.answer_at(str(share.face))
    return site


async def _misspelt(request: web.Request) -> web.StreamResponse:
    """The data path reads paths as they are; this one came in another spelling."""
    raise Refusal(404, f"Not Found: {request.method} {request.raw_path[:200]}")


def _keyed(service: Service) -> Middleware:
    """Return what asks for a client's key where there are keys, on all that clients use."""

    @web.middleware
    async def keyed(request: web.Request, handler: Answering) -> web.StreamResponse:
        if request.path in OPEN_TO_CLIENTS and service.keys is not None:
            service.client_of(request.headers)
        return await handler(request)

    return keyed


@web.middleware
async def _last(request: web.Request, handler: Answering) -> web.StreamResponse:
    """End the connection: its next request may be an order, which is not read here."""
    response = await handler(request)
    response.force_close()
    return response
