from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from daemons.cluster.key import ClusterKey
from daemons.cluster.load import is_loopback
from daemons.protocol.topology import Role
from daemons.runtime.guard import Guard, bearer, guard, tell_exposure
from daemons.runtime.http import Site, json_response, make_app, run_site

KEY = ClusterKey(b"k" * 32, "here")


async def say_ok(_: web.Request) -> web.Response:
    return json_response({"ok": True})


@asynccontextmanager
async def serving(door: Guard) -> AsyncIterator[Site]:
    app = make_app(guard=door.middleware)
    app.router.add_get("/health", say_ok)
    app.router.add_get("/metrics", say_ok)
    app.router.add_get("/rooms/{room}", say_ok)
    app.router.add_post("/drain", say_ok)
    site = await run_site(app, "127.0.0.1", 0)
    try:
        yield site
    finally:
        await site.close()


async def asked(
    site: Site, method: str, path: str, headers: dict[str, str] | None = None
) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, site.url + path, headers=headers) as response,
    ):
        return response.status, await response.text(), response.headers.get("WWW-Authenticate", "")


async def test_without_a_key_everything_is_open() -> None:
    async with serving(guard(None, Role.DECODE)) as site:
        assert (await asked(site, "POST", "/drain"))[0] == 200


async def test_with_a_key_only_what_is_named_open_is() -> None:
    async with serving(guard(KEY, Role.DECODE)) as site:
        assert (await asked(site, "GET", "/health"))[0] == 200
        assert (await asked(site, "GET", "/metrics"))[0] == 200
        for method, path in (("POST", "/drain"), ("GET", "/rooms/1")):
            status, body, scheme = await asked(site, method, path)
            assert (status, scheme) == (401, "Bearer")
            assert "key_file" in body
            assert "request.unauthorized" in body
            assert (await asked(site, method, path, bearer(KEY, Role.DECODE)))[0] == 200


async def test_a_route_may_be_named_open_and_metrics_closed() -> None:
    door = guard(KEY, Role.LB, also_open=["/rooms/{room}"], metrics_too=True)
    async with serving(door) as site:
        assert (await asked(site, "GET", "/rooms/7"))[0] == 200
        assert (await asked(site, "GET", "/metrics"))[0] == 401


async def test_what_is_no_route_is_404_to_everybody() -> None:
    async with serving(guard(KEY, Role.DECODE)) as site:
        assert (await asked(site, "GET", "/nowhere"))[0] == 404
        assert (await asked(site, "PUT", "/drain"))[0] == 405


@pytest.mark.parametrize(
    "given",
    [
        "Bearer ",
        "Bearer wrong",
        "Basic YTpi",
        KEY.token(Role.DECODE),
        f"Bearer {KEY.token(Role.DECODE)}0",
        f"Bearer {KEY.token(Role.DECODE)[:-1]}",
        f"Bearer {KEY.token(Role.BOOTSTRAP)}",
        f"Bearer {ClusterKey(b'o' * 32, '').token(Role.DECODE)}",
        "Bearer \u00e4",
    ],
)
async def test_anything_but_the_token_of_this_daemon_is_refused(given: str) -> None:
    async with serving(guard(KEY, Role.DECODE)) as site:
        status, body, _ = await asked(site, "POST", "/drain", {"Authorization": given})
    assert status == 401
    assert KEY.token(Role.DECODE) not in body


async def test_the_word_bearer_may_be_written_in_any_case() -> None:
    async with serving(guard(KEY, Role.DECODE)) as site:
        given = f"bEARER {KEY.token(Role.DECODE)}"
        assert (await asked(site, "POST", "/drain", {"Authorization": given}))[0] == 200


async def test_many_refusals_are_one_line_of_log_and_show_no_token() -> None:
    wrong = {"Authorization": "Bearer secret-of-a-client"}
    with capture_logs() as lines:
        async with serving(guard(KEY, Role.DECODE)) as site:
            for _ in range(20):
                await asked(site, "POST", "/drain", wrong)
    told = [line for line in lines if line["event"] == "request.unauthorized"]
    assert [line["reason"] for line in told] == ["wrong token"]
    assert "secret" not in str(lines)


@pytest.mark.parametrize(
    ("bind", "key", "events"),
    [
        ("127.0.0.1", None, []),
        ("::1", None, []),
        ("localhost", None, []),
        ("0.0.0.0", None, ["key.missing"]),
        ("10.0.0.2", None, ["key.missing"]),
        ("::", None, ["key.missing"]),
        ("n1.example", None, ["key.missing"]),
        ("0.0.0.0", KEY, ["key.loaded"]),
    ],
)
def test_a_daemon_without_key_that_others_reach_says_so(
    bind: str, key: ClusterKey | None, events: list[str]
) -> None:
    with capture_logs() as lines:
        tell_exposure(bind, key)
    assert [line["event"] for line in lines] == events
    assert "k" * 32 not in str(lines)
    assert is_loopback(bind) or events


def test_a_guard_does_not_show_its_token() -> None:
    assert KEY.token(Role.LB) not in repr(guard(KEY, Role.LB))
