"""Names that come with a request and go with its answer: its id, and its place in a trace.

A ``traceparent`` that is none is ignored, as W3C's Trace Context wants it; a valid one is told to
the rank, so that stories and closing lines have its trace id.
"""

from __future__ import annotations

import re

from aiohttp import web

from daemons.front.validate import ID_HEADER

TRACE_HEADER = "traceparent"
RID = web.RequestKey("rid", str)  # the id that the request has, whoever gave it

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def trace_id(request: web.Request) -> str:
    """Return the trace that a request belongs to, 32 hexadecimal digits, "" when to none."""
    found = _TRACEPARENT.fullmatch(request.headers.get(TRACE_HEADER, ""))
    if found is None or found[0].startswith("ff") or not int(found[1], 16):
        return ""
    return found[1]


def add_to(app: web.Application) -> None:
    """Have every answer carry the names of its request."""
    app.on_response_prepare.append(_name)


async def _name(request: web.Request, response: web.StreamResponse) -> None:
    if RID in request:
        response.headers.setdefault(ID_HEADER, request[RID])
    if trace_id(request):
        response.headers.setdefault(TRACE_HEADER, request.headers[TRACE_HEADER])
