"""``/openapi.json`` and ``/docs``: what clients may ask, from the very types that read it.

Schemas are msgspec's; a body that is read in several parts is all of them together. The page is
one file of ours that shows the document, and loads nothing from anywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from daemons.protocol.api.generate_body import GenerateBody
from daemons.protocol.api.openai_bodies import ChatBody, CompletionBody, SharedBody
from daemons.protocol.api.pair import PairBody
from daemons.runtime.api_page import PAGE
from daemons.runtime.http import json_response

OPENAPI_VERSION = "3.1.0"
REFERENCE = "#/components/schemas/{name}"
DOCUMENT_PATH, PAGE_PATH = "/openapi.json", "/docs"

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"enum": ["invalid_request_error", "server_error"]},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer", "description": "the HTTP status"},
                "room": {"type": ["integer", "null"]},
                "attempt": {"type": ["integer", "null"]},
                "stage": {"type": ["string", "null"]},
                "peer": {"type": ["string", "null"]},
                "cause": {"type": ["string", "null"]},
                "retry": {"type": "boolean"},
            },
        }
    },
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One path that clients may use."""

    method: str
    path: str
    summary: str
    bodies: tuple[type, ...] = ()  # all of them read the same object
    streams: bool = False  # with "stream": true the answer is server-sent events


CLIENTS = (
    Operation(
        "post", "/v1/chat/completions", "Answer to messages", (ChatBody, SharedBody), streams=True
    ),
    Operation(
        "post", "/v1/completions", "Go on from prompts", (CompletionBody, SharedBody), streams=True
    ),
    Operation("post", "/generate", "SGLang's request", (GenerateBody,), streams=True),
    Operation("get", "/v1/models", "The model that is served"),
    Operation("get", "/health", "Whether requests are welcome"),
)


def with_rooms(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return the operations of a worker: a body also says which room it is for."""
    return tuple(
        Operation(one.method, one.path, one.summary, (*one.bodies, PairBody), one.streams)
        if one.bodies
        else one
        for one in operations
    )


def document(title: str, version: str, operations: Sequence[Operation]) -> dict[str, Any]:
    """Return an OpenAPI document."""
    types = list(dict.fromkeys(body for one in operations for body in one.bodies))
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    references = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method] = _operation(one, references)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": title, "version": version or "0"},
        "paths": paths,
        "components": {"schemas": {**components, "Error": ERROR_SCHEMA}},
    }


def add_to(app: web.Application, described: dict[str, Any]) -> None:
    """Add the two routes to an application."""

    async def told(_: web.Request) -> web.Response:
        return json_response(described)

    async def shown(_: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html", headers=PAGE_HEADERS)

    app.router.add_get(DOCUMENT_PATH, told)
    app.router.add_get(PAGE_PATH, shown)


# Nothing but the page's own words, and the document beside it.
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
        " connect-src 'self'"
    )
}


def _operation(one: Operation, references: dict[type, dict[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {}}
    if one.streams:
        content["text/event-stream"] = {}
    errors = {"application/json": {"schema": {"$ref": REFERENCE.format(name="Error")}}}
    told: dict[str, Any] = {
        "summary": one.summary,
        "operationId": one.path.strip("/").replace("/", "_"),
        "responses": {
            "200": {"description": "The answer", "content": content},
            "default": {"description": "What is wrong", "content": errors},
        },
    }
    if one.bodies:
        parts = [references[body] for body in one.bodies]
        schema = parts[0] if len(parts) == 1 else {"allOf": parts}
        told["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return told
