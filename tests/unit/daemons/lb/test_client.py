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
    whole,
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


async def test_a_client_that_leaves_when_it_has_all_was_served(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    never = asyncio.Event()
    d0 = await fake("d0", events(ONE, after=never))
    lb = await balancer(await fake("p0", events(ONE)), d0)
    async with lb.post("/generate", {"text": "a", "stream": True}) as response:
        while not (await response.content.readany()).endswith(b"[DONE]\n\n"):
            pass
        room = int(response.headers["X-PD-Room"], 16)
        response.close()
    await happens(d0.left)
    await idle(lb)
    (story,) = lb.service.recorder.stories(room)
    assert story.failure is None
    assert not story.open


async def test_every_answer_names_its_rooms(balancer: MakeBalancer, fake: MakeWorker) -> None:
    lb = await balancer(await fake("p0", whole([ONE, TWO])), await fake("d0", whole([ONE, TWO])))
    async with lb.post("/generate", {"text": ["a", "b"]}) as response:
        assert response.status == 200
        rooms = [int(word, 16) for word in response.headers["X-PD-Room"].split(",")]
    assert len(set(rooms)) == 2
    assert all(lb.service.recorder.stories(room) for room in rooms)
    lb = await balancer(await fake("p1", whole({}, 500)), await fake("d1", waits()))
    async with lb.post("/generate", {"text": "a"}) as response:
        assert response.status == 500
        assert lb.service.recorder.stories(int(response.headers["X-PD-Room"], 16))
