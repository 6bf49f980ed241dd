from __future__ import annotations

import asyncio
import json

from daemons.protocol.topology import Fingerprint

from .conftest import (
    MakeBalancer,
    MakeWorker,
    events,
    happens,
    idle,
    waits,
)

ONE, TWO = {"text": "a"}, {"text": "ab"}
FINGERPRINT = Fingerprint("m", "fp32", 16, 2, 2, 8)


async def test_a_stream_is_passed_on_with_its_end_mark(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    lb = await balancer(await fake("p0", events(ONE)), await fake("d0", events(ONE, TWO)))
    async with lb.post("/generate", {"text": "a", "stream": True}) as response:
        assert response.content_type == "text/event-stream"
        assert await response.read() == (
            b'data: {"text": "a"}\n\ndata: {"text": "ab"}\n\ndata: [DONE]\n\n'
        )
    await idle(lb)


async def test_an_error_after_the_head_is_the_last_event_and_no_end_mark_follows(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    told = {"error": {"message": "m", "code": 504, "cause": "progress.timeout", "stage": "running"}}
    lb = await balancer(await fake("p0", events(ONE)), await fake("d0", events(ONE, told)))
    async with lb.post("/generate", {"text": "a", "stream": True}) as response:
        assert response.status == 200
        *_, last, nothing = (await response.read()).split(b"\n\n")
    assert json.loads(last.removeprefix(b"data: ")) == told
    assert nothing == b""
    await idle(lb)


async def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_both_legs(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    p0, d0 = await fake("p0", waits()), await fake("d0", events(ONE, between=asyncio.Event()))
    lb = await balancer(p0, d0)
    async with lb.post("/generate", {"text": "a", "stream": True}) as response:
        assert await response.content.readany() == b'data: {"text": "a"}\n\n'
        response.close()
    await happens(p0.left)
    await happens(d0.left)
    await idle(lb)


async def test_a_stream_that_is_cut_at_the_end_tells_its_client_why(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    d0 = await fake("d0", events(ONE, between=asyncio.Event()))
    lb = await balancer(await fake("p0", events(ONE)), d0)
    async with lb.post("/generate", {"text": "a", "stream": True}) as response:
        await response.content.readany()
        lb.service.open.cut_all()
        last, nothing = (await response.content.read()).split(b"\n\n")
    assert json.loads(last.removeprefix(b"data: "))["error"]["cause"] == "instance.stopping"
    assert nothing == b""
    await happens(d0.left)
    await idle(lb)
