from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from daemons.lb.merged import Merged
from daemons.runtime.http import json_response, make_app, run_site

TEXT = """# TYPE pd_lb_requests counter
pd_lb_requests_total{path="/generate",status="200"} 2.0
# TYPE pd_lb_workers gauge
pd_lb_workers{role="prefill",state="ready"} 1.0
# TYPE pd_lb_first_seconds histogram
pd_lb_first_seconds_bucket{le="0.1"} 1.0
pd_lb_first_seconds_bucket{le="+Inf"} 2.0
pd_lb_first_seconds_count 2.0
pd_lb_first_seconds_sum 0.5
"""


class Process:
    """One process, as far as the lead asks it."""

    def __init__(self, number: int, token: str = "") -> None:
        self.number, self.token = number, token

    async def answer(self, request: web.Request) -> web.Response:
        if self.token and request.headers.get("Authorization") != self.token:
            return json_response({"error": {"code": 401}}, status=401)
        if request.path == "/metrics":
            return web.Response(text=TEXT)
        if request.path == "/rooms":
            return json_response({"rooms": [self.number]})
        if request.path == f"/rooms/{self.number}":
            return json_response({"stories": [self.number]})
        if request.path.startswith("/rooms/"):
            return json_response({"error": {"code": 404}}, status=404)
        counts: dict[str, Any] = {"rooms": {"stream": 1}, "counters": {"requests": 2}}
        return json_response({"instance": "lb", "said": await request.text(), **counts})


@pytest.fixture
async def asked(tmp_path: Any) -> AsyncIterator[Any]:
    closing: list[Any] = []

    async def make(*processes: Process, dead: int = 0) -> Any:
        faces = []
        for process in processes:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", process.answer)
            runner = web.AppRunner(app)
            await runner.setup()
            path = str(tmp_path / f"{len(closing)}-{process.number}")
            await web.UnixSite(runner, path).start()
            faces.append(aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)))
            closing.append(runner.cleanup)
        gone = str(tmp_path / "gone")
        for _ in range(dead):
            faces.append(aiohttp.ClientSession(connector=aiohttp.UnixConnector(gone)))
        app = make_app()
        app.add_routes(Merged(faces[::-1]).routes())
        site = await run_site(app, "127.0.0.1", 0, stop_s=0.1)
        http = aiohttp.ClientSession(site.url)
        closing.extend([*(face.close for face in faces), http.close, site.close])
        return http

    yield make
    for close in closing[::-1]:
        await close()


async def test_counts_are_added_and_what_all_know_is_taken_once(asked: Any) -> None:
    http = await asked(Process(0), Process(1), dead=1)
    async with http.get("/metrics") as response:
        families = {f.name: f for f in text_string_to_metric_families(await response.text())}
    values = {s.name: s.value for family in families.values() for s in family.samples}
    assert values["pd_lb_requests_total"] == 4
    assert values["pd_lb_workers"] == 1
    assert values["pd_lb_first_seconds_count"] == 4
    assert families["pd_lb_first_seconds"].type == "histogram"
    async with http.get("/status") as response:
        said = await response.json()
    assert (said["rooms"], said["counters"]) == ({"stream": 2}, {"requests": 4})


async def test_a_room_is_found_where_it_was(asked: Any) -> None:
    http = await asked(Process(0), Process(1))
    async with http.get("/rooms") as response:
        assert sorted((await response.json())["rooms"]) == [0, 1]
    for number in (0, 1):
        async with http.get(f"/rooms/{number}") as response:
            assert (await response.json())["stories"] == [number]
    async with http.get("/rooms/7") as response:
        assert response.status == 404


async def test_all_else_is_asked_of_one_that_answers_and_tokens_go_with_it(asked: Any) -> None:
    http = await asked(Process(0, token="Bearer t"), dead=1)
    for path in ("/metrics", "/status", "/any"):
        async with http.get(path) as response:
            assert response.status == 401
        async with http.get(path, headers={"Authorization": "Bearer t"}) as response:
            assert response.status == 200
    headers = {"Authorization": "Bearer t"}
    async with http.post("/abort_request", data=b"body", headers=headers) as response:
        assert (await response.json())["said"] == "body"


async def test_where_no_process_answers_it_is_503(asked: Any) -> None:
    http = await asked(dead=1)
    for path in ("/metrics", "/any", "/rooms/1"):
        async with http.get(path) as response:
            assert response.status == 503
