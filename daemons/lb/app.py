"""All routes of pd-lb."""

from __future__ import annotations

from aiohttp import web

from daemons.lb.aside import Aside
from daemons.lb.order import CHAT, COMPLETIONS, GENERATE
from daemons.lb.overview import Overview
from daemons.lb.service import Service
from daemons.runtime.http import make_app

# What needs no token of ours: clients' requests. All else shows or changes the cluster.
OPEN_TO_CLIENTS = (
    GENERATE,
    COMPLETIONS,
    CHAT,
    "/health_generate",
    "/abort_request",  # of one's own; "all" wants the token
    "/v1/models",
    "/get_model_info",
)


def app_of(service: Service) -> web.Application:
    """Return the application."""
    app = make_app(
        body_bytes_limit=service.config.max_body_bytes,
        connections_limit=service.config.max_connections,
        guard=service.guard.middleware,
    )
    for part in (service, Aside(service), Overview(service)):
        app.add_routes(part.routes())
    return app
