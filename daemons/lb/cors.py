"""Which pages of other origins a browser lets read our answers: none, unless settings name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware

from daemons.runtime.http import Answering

ANY = "*"
PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Request-ID, X-Session-ID",
    "Access-Control-Max-Age": "600",
}


def cors_headers(allowed: Sequence[str], headers: Mapping[str, str]) -> dict[str, str]:
    """Return what an answer to a request with these headers says to a browser."""
    origin = headers.get("origin")
    if not origin or (ANY not in allowed and origin not in allowed):
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "X-PD-Room, X-Request-ID, Retry-After",
        "Vary": "Origin",
    }


def cors_middleware(allowed: Sequence[str]) -> Middleware:
    """Return what answers a browser's question before its request, and marks the answers."""

    @web.middleware
    async def marked(request: web.Request, handler: Answering) -> web.StreamResponse:
        said = cors_headers(allowed, request.headers)
        if said and request.method == "OPTIONS":
            return web.Response(status=204, headers={**said, **PREFLIGHT})
        response = await handler(request)
        response.headers.update(said)
        return response

    return marked
