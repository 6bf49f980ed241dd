"""The description of what clients may ask."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import jsonschema
import pytest

from daemons.protocol.api.openai_bodies import ChatBody, SharedBody
from daemons.runtime.http import make_app, run_site
from daemons.runtime.openapi import CLIENTS, add_to, document, with_rooms

DOCUMENT = document("pd", "1.2.3", with_rooms(CLIENTS))
SCHEMAS = DOCUMENT["components"]["schemas"]


def body_schema(path: str) -> dict[str, Any]:
    content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]
    return {**content["application/json"]["schema"], "components": DOCUMENT["components"]}


def test_every_reference_leads_somewhere() -> None:
    text = json.dumps(DOCUMENT)
    names = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(SCHEMAS)
    assert {"ChatBody", "SharedBody", "PairBody", "Wishes", "Error"} <= set(SCHEMAS)


def test_a_body_has_the_fields_of_all_its_parts() -> None:
    assert set(SCHEMAS["ChatBody"]["properties"]) == set(ChatBody.__struct_fields__)
    assert set(SCHEMAS["SharedBody"]["properties"]) == set(SharedBody.__struct_fields__)
    parts = [part["$ref"] for part in body_schema("/v1/chat/completions")["allOf"]]
    assert [part.rpartition("/")[2] for part in parts] == ["ChatBody", "SharedBody", "PairBody"]


@pytest.mark.parametrize(
    ("path", "body", "is_right"),
    [
        ("/v1/chat/completions", {"messages": [], "n": 2, "bootstrap_room": [1, 2]}, True),
        ("/v1/chat/completions", {"n": 2}, False),
        ("/v1/completions", {"prompt": [[1], [2]], "temperature": 0.5}, True),
        ("/v1/completions", {"prompt": "a", "temperature": "hot"}, False),
        ("/generate", {"text": "a", "sampling_params": [{"n": 1}]}, True),
        ("/generate", {"text": "a", "sampling_params": {"temprature": 1}}, False),
    ],
)
def test_the_schemas_say_what_the_readers_say(
    path: str,
    body: dict[str, Any],
    is_right: bool,  # noqa: FBT001
) -> None:
    jsonschema.Draft202012Validator.check_schema(body_schema(path))
    assert jsonschema.Draft202012Validator(body_schema(path)).is_valid(body) is is_right


def test_a_balancers_body_has_no_room() -> None:
    plain = document("pd", "", CLIENTS)
    assert "PairBody" not in plain["components"]["schemas"]
    assert plain["paths"]["/v1/models"]["get"]["responses"]["200"]


async def test_the_document_and_a_page_that_loads_nothing_else_are_served() -> None:
    app = make_app()
    add_to(app, DOCUMENT)
    site = await run_site(app, "127.0.0.1", 0, stop_s=0.1)
    try:
        async with aiohttp.ClientSession(site.url) as http:
            async with http.get("/openapi.json") as answer:
                assert (await answer.json())["info"] == {"title": "pd", "version": "1.2.3"}
            async with http.get("/docs") as answer:
                page = await answer.text()
                assert answer.content_type == "text/html"
                assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    finally:
        await site.close()
    assert "openapi.json" in page
    assert "http" not in page.replace("</html>", "").replace("<!doctype html>", "")
