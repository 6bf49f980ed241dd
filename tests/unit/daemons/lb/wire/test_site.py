from __future__ import annotations

import asyncio
import json

from tests.unit.daemons.lb.conftest import (
    DEADLINE_S,
    FakeWorker,
    MakeBalancer,
    MakeWorker,
    events,
    happens,
    waits,
    whole,
)


async def test_orders_and_all_else_come_by_one_port(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    for _ in range(2):
        async with lb.get("/status") as response:
            assert response.headers["Connection"] == "close"
            assert (await response.json())["instance"] == "lb"
        async with lb.post("/generate", {"text": "a"}) as response:
            assert await response.json() == {"text": "decode"}


async def test_a_site_that_closes_lets_an_answer_end_and_takes_no_more(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    go = asyncio.Event()
    d0 = await fake("d0", waits(go, whole({"text": "late"})))
    lb = await balancer(await fake("p0", whole({})), d0)
    asking = asyncio.create_task(lb.http.post(lb.site.url + "/generate", data=b'{"text":"a"}'))
    await happens(d0.came)
    closing = asyncio.create_task(lb.site.close())
    await asyncio.sleep(0)
    go.set()
    async with await asyncio.wait_for(asking, DEADLINE_S) as response:
        assert json.loads(await response.read()) == {"text": "late"}
        assert response.headers["Connection"] == "close"
    await asyncio.wait_for(closing, DEADLINE_S)
    assert lb.site.doorway.connections == set()


async def test_what_is_not_over_when_a_site_closes_is_cut(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    p0, d0 = await fake("p0", waits()), await fake("d0", events({"n": 1}, between=asyncio.Event()))
    lb = await balancer(p0, d0)
    lb.site.stop_s = 0.05
    async with lb.post("/generate", {"text": "a", "stream": True}) as response:
        assert await response.content.readany() == b'data: {"n": 1}\n\n'
        await asyncio.wait_for(lb.site.close(), DEADLINE_S)
        response.close()
    await happens(d0.left)
    await happens(p0.left)
