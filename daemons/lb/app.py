"""All routes of pd-lb."""

from __future__ import annotations

from aiohttp import web

from daemons.lb.aside import Aside
from daemons.lb.overview import Overview
from daemons.lb.service import Service
from daemons.runtime.http import make_app


def app_of(service: Service) -> web.Application:
    """Return the application."""
    app = make_app(body_bytes_limit=service.config.max_body_bytes)
    for part in (service, Aside(service), Overview(service)):
        app.add_routes(part.routes())
    return app
