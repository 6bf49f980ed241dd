from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge

from daemons.protocol.causes import Cause, Failure
from daemons.runtime import http
from daemons.runtime.http import (
    UNREAD_S,
    Refusal,
    Site,
    host_in_url,
    invalid,
    json_response,
    make_app,
    metrics_response,
    read_json,
    run_site,
    url_of,
)

Answer = Callable[[web.Request], Coroutine[object, object, web.StreamResponse]]


class Point(msgspec.Struct, forbid_unknown_fields=True):
    x: int


async def echo(request: web.Request) -> web.Response:
    return json_response(await read_json(request, Point))


@asynccontextmanager
async def serving(answer: Answer, *, host: str = "127.0.0.1") -> AsyncIterator[Site]:
    app = make_app(body_bytes_limit=1000)
    app.router.add_post("/x", answer)
    site = await run_site(app, host, 0)
    try:
        yield site
    finally:
        await site.close()


async def post(url: str, body: bytes) -> tuple[int, dict[str, object], str | None]:
    async with aiohttp.ClientSession() as session, session.post(url, data=body) as response:
        return response.status, await response.json(), response.headers.get("Retry-After")


async def test_a_body_that_is_not_in_its_encoding_is_400() -> None:
    gzipped = {"Content-Encoding": "gzip"}
    async with (
        serving(echo) as site,
        aiohttp.ClientSession() as session,
        session.post(f"{site.url}/x", data=b'{"x":1}', headers=gzipped) as response,
    ):
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["cause"] == "request.invalid"
    assert "gzip" in error["message"]


async def test_a_connection_whose_client_never_reads_does_not_live_for_ever() -> None:
    async def limit_of(request: web.Request) -> web.Response:
        assert request.transport is not None
        sock: socket.socket = request.transport.get_extra_info("socket")
        return json_response(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))

    async with (
        serving(limit_of) as site,
        aiohttp.ClientSession() as session,
        session.post(f"{site.url}/x") as response,
    ):
        assert await response.json() == UNREAD_S * 1000


def test_a_failure_becomes_an_error_that_names_room_stage_peer_and_cause() -> None:
    failure = Failure(Cause.PEER_DIED, "transfer", "p0", "no heartbeat")
    error = Refusal.of(failure, room=0x7F3A, attempt=2).body()["error"]
    assert error == {
        "message": "room 00000000007f3a: peer.died in transfer (p0): no heartbeat",
        "type": "server_error",
        "param": None,
        "code": 502,
        "room": 0x7F3A,
        "attempt": 2,
        "stage": "transfer",
        "peer": "p0",
        "cause": "peer.died",
        "retry": True,
    }


def test_a_plain_message_has_the_same_keys() -> None:
    plain = Refusal(404, "no such room").body()["error"]
    whole = Refusal.of(Failure(Cause.INTERNAL, "x")).body()["error"]
    assert plain.keys() == whole.keys()
    assert (plain["type"], plain["cause"], plain["retry"]) == ("invalid_request_error", None, False)


@pytest.mark.parametrize(
    ("refusal", "after"),
    [
        (Refusal.of(Failure(Cause.QUEUE_FULL, "queue")), "1"),
        (Refusal.of(Failure(Cause.QUEUE_FULL, "queue"), retry_after_s=2.2), "3"),
        (Refusal(429, "slower"), "1"),
        (Refusal(400, "no"), None),
    ],
)
def test_whoever_may_come_again_is_told_when(refusal: Refusal, after: str | None) -> None:
    assert refusal.response().headers.get("Retry-After") == after


async def test_a_good_body_is_read_and_answered() -> None:
    async with serving(echo) as site:
        assert (await post(site.url + "/x", b'{"x": 3}'))[:2] == (200, {"x": 3})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "truncated"),
        (b"[1]", "Expected `object`"),
        (b'{"x": "3"}', "at `$.x`"),
        (b'{"x": 3, "y": 4}', "unknown field `y`"),
        (b"\xff", "body"),
        (b"[" * 900, "body"),
    ],
)
async def test_a_bad_body_is_refused_with_its_reason(body: bytes, reason: str) -> None:
    async with serving(echo) as site:
        status, answer, _ = await post(site.url + "/x", body)
    error = answer["error"]
    assert isinstance(error, dict)
    assert (status, error["cause"]) == (400, "request.invalid")
    assert reason in error["message"]


async def test_a_body_over_the_limit_is_refused_in_the_same_shape() -> None:
    async with serving(echo) as site:
        status, answer, _ = await post(site.url + "/x", b" " * 2000)
    assert status == 413
    assert isinstance(answer["error"], dict)
    assert answer["error"]["code"] == 413


async def test_unknown_paths_and_methods_are_told_in_the_same_shape() -> None:
    async with serving(echo) as site, aiohttp.ClientSession() as session:
        async with session.get(site.url + "/nowhere") as response:
            assert response.status == 404
            assert (await response.json())["error"]["message"] == "Not Found: GET /nowhere"
        async with session.get(site.url + "/x") as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_an_unexpected_exception_fails_the_request_and_not_the_site() -> None:
    async def breaks(request: web.Request) -> web.Response:
        if (await request.read()) == b"break":
            raise ZeroDivisionError("a bug")
        return json_response({})

    async with serving(breaks) as site:
        status, answer, _ = await post(site.url + "/x", b"break")
        assert (status, answer["error"]["cause"]) == (500, "internal.error")  # type: ignore[index]
        assert "ZeroDivisionError: a bug" in answer["error"]["message"]  # type: ignore[index]
        async with aiohttp.ClientSession() as session, session.post(site.url + "/x") as response:
            assert response.status == 200


async def test_a_client_that_leaves_cancels_its_request() -> None:
    came, cancelled = asyncio.Event(), asyncio.Event()

    async def waits(_: web.Request) -> web.Response:
        came.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with serving(waits) as site:
        asking = asyncio.create_task(post(site.url + "/x", b""))
        await asyncio.wait_for(came.wait(), 5)
        asking.cancel()
        await asyncio.wait_for(cancelled.wait(), 5)


async def test_port_zero_is_bound_and_told_on_ipv6_too() -> None:
    async with serving(echo, host="::1") as site:
        assert site.port > 0
        assert site.url == f"http://[::1]:{site.port}"
        assert (await post(site.url + "/x", b'{"x": 3}'))[0] == 200


async def test_a_site_takes_over_an_open_socket() -> None:
    held = socket.create_server(("127.0.0.1", 0))
    app = make_app()
    app.router.add_post("/x", echo)
    site = await run_site(app, "127.0.0.1", 1, held)
    try:
        assert site.port == held.getsockname()[1]
        assert (await post(site.url + "/x", b'{"x": 3}'))[0] == 200
    finally:
        await site.close()


async def test_an_address_that_is_taken_is_named_in_the_error() -> None:
    async with serving(echo) as site:
        with pytest.raises(OSError, match=f"cannot listen on http://127.0.0.1:{site.port}"):
            await run_site(make_app(), "127.0.0.1", site.port)


async def test_closing_lets_an_open_request_end() -> None:
    came, go = asyncio.Event(), asyncio.Event()

    async def waits(_: web.Request) -> web.Response:
        came.set()
        await go.wait()
        return json_response({"ended": "well"})

    async with serving(waits) as site:
        asking = asyncio.create_task(post(site.url + "/x", b""))
        await asyncio.wait_for(came.wait(), 5)
        closing = asyncio.create_task(site.close())
        go.set()
        assert (await asking)[:2] == (200, {"ended": "well"})
        await closing


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("::1", "[::1]"),
        ("fe80::1%eth0", "[fe80::1%eth0]"),
        ("127.0.0.1", "127.0.0.1"),
        ("n1", "n1"),
    ],
)
def test_an_ipv6_address_gets_brackets_in_a_url(host: str, expected: str) -> None:
    assert host_in_url(host) == expected
    assert url_of(host, 80) == f"http://{expected}:80"


def test_invalid_is_a_400_with_the_cause_of_bad_requests() -> None:
    refusal = invalid("why")
    assert refusal.status == 400
    assert refusal.failure is not None
    assert refusal.failure.cause is Cause.REQUEST_INVALID


def test_metrics_come_in_prometheus_form() -> None:
    registry = CollectorRegistry()
    Gauge("pd_x", "x", registry=registry).set(3)
    response = metrics_response(registry)
    assert response.content_type == "text/plain"
    assert isinstance(response.body, bytes)
    assert b"pd_x 3.0" in response.body


async def test_a_body_that_does_not_come_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_S", 0.05)
    async with serving(echo) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        head = await asyncio.wait_for(reader.readline(), 10)
        writer.close()
        await writer.wait_closed()
    assert b" 408 " in head


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("top_k: 0; it is -1 (all) or at least 1", "top_k"),
        ("messages[0].content: a text is needed", "messages[0].content"),
        ("Unknown parameter: 'surprise'.", "surprise"),
        ("body: Expected `float`, got `str` - at `$.temperature`", "temperature"),
        ("body: Object missing required field `prompt`", "prompt"),
        ("body: JSON is malformed: trailing characters (byte 3)", None),
        ("the prompt has no tokens", None),
    ],
)
def test_a_refusal_names_the_field_that_is_wrong(message: str, param: str | None) -> None:
    assert invalid(message).body()["error"]["param"] == param
    assert Refusal(500, message).body()["error"]["param"] is None
