from __future__ import annotations

from daemons.cluster.key import ClusterKey
from daemons.lb.app import OPEN_TO_CLIENTS, app_of
from daemons.protocol.topology import Role
from daemons.runtime.guard import guard
from daemons.runtime.http import run_site

from .conftest import MakeBalancer


async def test_every_endpoint_has_a_route(balancer: MakeBalancer) -> None:
    lb = await balancer()
    routes = {(route.method, str(route.resource)) for route in app_of(lb.service).router.routes()}
    told = {f"{method} {resource.split()[-1].strip('>')}" for method, resource in routes}
    assert told >= {
        "POST /generate",
        "POST /v1/completions",
        "POST /v1/chat/completions",
        "POST /abort_request",
        "GET /v1/models",
        "GET /get_model_info",
        "GET /health",
        "GET /health_generate",
        "GET /metrics",
        "GET /status",
        "GET /fleet",
        "GET /rooms",
        "GET /rooms/{room}",
        "GET /openapi.json",
        "GET /docs",
    }


async def test_what_has_no_route_is_404_in_the_shape_of_all_errors(balancer: MakeBalancer) -> None:
    lb = await balancer()
    async with lb.get("/version") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, 404)


async def test_with_a_key_only_clients_routes_health_and_metrics_need_no_token(
    balancer: MakeBalancer,
) -> None:
    lb = await balancer()
    lb.service.guard = guard(ClusterKey(b"k" * 32, "here"), Role.LB, also_open=OPEN_TO_CLIENTS)
    app = app_of(lb.service)
    site = await run_site(app, "127.0.0.1", 0, stop_s=0.1)
    statuses = {}
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        url = site.url + path.replace("{room}", "1")
        async with lb.http.request(route.method, url, data=b'{"rid":"r"}') as response:
            statuses[path] = response.status
    await site.close()
    closed = {path for path, status in statuses.items() if status == 401}
    assert closed >= {"/status", "/fleet", "/rooms", "/rooms/{room}"}
    assert statuses.keys() - closed == {*OPEN_TO_CLIENTS, "/health", "/metrics"}
