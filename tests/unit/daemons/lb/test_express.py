from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from daemons.lb import express as express_module

from .conftest import (
    Balancer,
    FakeWorker,
    MakeBalancer,
    MakeWorker,
    Reply,
    breaks,
    events,
    explained,
    happens,
    idle,
    read,
    until,
    waits,
    warm,
    whole,
)

ONE, TWO = {"text": "a", "meta_info": {"finish_reason": None}}, {"text": "ab"}


def untasked(lb: Balancer) -> int:
    return len(lb.service.express.running)


async def ready(lb: Balancer, *workers: FakeWorker) -> Balancer:
    """Let a balancer have open connections, whatever it had before."""
    for worker in workers:
        await warm(lb.service.pool, worker)
    return lb


def pieces(*parts: bytes) -> Reply:
    """Answer a stream in just these pieces."""

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(0)
        return response

    return reply


async def streamed(lb: Balancer, **fields: Any) -> bytes:
    async with lb.post("/generate", {"text": "a", "stream": True, **fields}) as response:
        body: bytes = await response.read()
        return body


async def test_a_request_on_open_connections_has_no_task(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    go = asyncio.Event()
    p0, d0 = await fake("p0", whole({})), await fake("d0", waits(go, whole({"text": "x"})))
    lb = await ready(await balancer(p0, d0), p0, d0)
    asking = asyncio.create_task(lb.post("/generate", {"text": "a"}).__aenter__())
    await happens(d0.came)
    assert untasked(lb) == len(lb.service.open) == 1
    assert not lb.service.open.tasks
    go.set()
    async with await asking as response:
        assert await read(response) == (200, {"text": "x"})
    await idle(lb)
    assert lb.service.pool.opened == len(lb.service.pool.lines)


async def test_the_answers_are_those_of_a_request_with_a_task(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    p0, d0 = await fake("p0", events(ONE)), await fake("d0", events(ONE, TWO))
    lb = await balancer(p0, d0)
    first, second = await streamed(lb), await streamed(lb)
    assert first == second
    assert first.count(b"data: ") == 3
    lines = []
    for body in map(json.loads, d0.bodies):
        (story,) = lb.service.recorder.stories(body["bootstrap_room"])
        lines.append(sorted(line.because for line in story.lines))
    assert lines[0] == lines[1]
    await idle(lb)


@pytest.mark.parametrize(
    "parts",
    [
        (b'data: {"text": "[DONE]"}\n\n', b"data: [DONE]\n\n"),
        (b'data: {"te', b'xt": "x"}\n', b"\ndata: [DO", b"NE]\n\n"),
        (b'data: {"text": "{\\"error\\""}\n\ndata: [DONE]\n\n',),
        (b'data: {"a": {"error": 1}}\n\n', b"data: [DONE]\n\n"),
        (b": a comment\n\n", b'data: {"text": "x"}\n\ndata: [DONE]\n\n'),
    ],
)
async def test_events_pass_whatever_their_pieces_are(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker, parts: tuple[bytes, ...]
) -> None:
    d0 = await fake("d0", pieces(*parts))
    lb = await ready(await balancer(p0, d0, first_token="decode"), p0, d0)
    assert await streamed(lb) == b"".join(parts)
    await idle(lb)


@pytest.mark.parametrize(
    ("bad", "status", "cause"),
    [
        (explained("peer.died", 502, peer="p9"), 502, "peer.died"),
        (explained("request.invalid", 400), 400, "request.invalid"),
        (breaks(), 502, "lb.worker_gone"),
    ],
)
async def test_a_task_judges_what_goes_wrong(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker, bad: Reply, status: int, cause: str
) -> None:
    d0 = await fake("d0", bad)
    lb = await ready(await balancer(p0, d0, attempts=1), p0, d0)
    async with lb.post("/generate", {"text": "a"}) as response:
        told = await response.json()
        assert (response.status, told["error"]["cause"]) == (status, cause)
    assert untasked(lb) == 0
    await idle(lb)


async def test_an_event_that_tells_of_an_error_ends_both_legs(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    p0 = await fake("p0", waits())
    error = {"error": {"message": "m", "cause": "engine.failed", "code": 500}}
    d0 = await fake("d0", events(ONE, error, done=False))
    lb = await ready(await balancer(p0, d0, first_token="decode"), p0, d0)
    assert b"engine.failed" in (await streamed(lb)).split(b"\n\n")[1]
    await happens(p0.left)
    await idle(lb)


async def test_workers_hear_of_a_client_that_left(balancer: MakeBalancer, fake: MakeWorker) -> None:
    p0, d0 = await fake("p0", waits()), await fake("d0", waits())
    lb = await ready(await balancer(p0, d0), p0, d0)
    asking = asyncio.create_task(lb.post("/generate", {"text": "a"}).__aenter__())
    await happens(d0.came)
    asking.cancel()
    await happens(p0.left)
    await happens(d0.left)
    await idle(lb)
    room = d0.said["bootstrap_room"]
    (story,) = lb.service.recorder.stories(room)
    assert story.failure is not None
    assert story.failure.cause.value == "client.disconnected"


async def test_a_request_beyond_its_time_is_refused(
    balancer: MakeBalancer, fake: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(express_module, "TICK_S", 0.01)
    monkeypatch.setattr("daemons.lb.serving.GRACE_S", 0.02)
    p0, d0 = await fake("p0", waits()), await fake("d0", waits())
    lb = await ready(await balancer(p0, d0, attempts=1), p0, d0)
    headers = {"X-Request-Timeout": "0.02"}
    async with lb.post("/generate", {"text": "a"}, headers=headers) as response:
        assert (response.status, (await response.json())["error"]["cause"]) == (504, "lb.timeout")
    await happens(d0.left)
    await idle(lb)


async def test_a_stream_that_falls_silent_is_ended(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(express_module, "TICK_S", 0.01)
    d0 = await fake("d0", events(ONE, TWO, between=asyncio.Event()))
    lb = await ready(await balancer(p0, d0, first_token="decode", idle_s=0.05), p0, d0)
    assert b"no event for 0.05 s" in await streamed(lb)
    await happens(d0.left)
    await idle(lb)


async def test_those_that_are_open_at_the_end_are_told(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    p0, d0 = await fake("p0", waits()), await fake("d0", waits())
    lb = await ready(await balancer(p0, d0), p0, d0)
    asking = asyncio.create_task(lb.post("/generate", {"text": "a"}).__aenter__())
    await happens(d0.came)
    lb.service.open.cut_all()
    async with await asking as response:
        assert (await response.json())["error"]["cause"] == "instance.stopping"
    await idle(lb)


async def test_a_worker_that_is_given_up_is_given_up_here_too(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    d0 = await fake("d0", waits())
    d1 = await fake("d1", whole({"text": "d1"}))
    lb = await ready(await balancer(p0, d0, d1, decode_policy="round_robin"), p0, d0, d1)
    asking = asyncio.create_task(lb.post("/generate", {"text": "a"}).__aenter__())
    await happens(d0.came)
    await until(lambda: untasked(lb) == 1)
    lb.service.serving.lose(lb.service.fleet.workers["d0"], "a test says so")
    async with await asking as response:
        assert await read(response) == (200, {"text": "d1"})
    await happens(d0.left)
    await idle(lb)
