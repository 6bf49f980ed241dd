from __future__ import annotations

from daemons.lb.app import app_of

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
    }


async def test_what_has_no_route_is_404_in_the_shape_of_all_errors(balancer: MakeBalancer) -> None:
    lb = await balancer()
    async with lb.get("/version") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, 404)
