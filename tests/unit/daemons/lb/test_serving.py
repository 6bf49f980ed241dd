from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from aiohttp import web

from daemons.lb import serving
from daemons.lb.config import StaticWorker
from daemons.lb.watch import Watch
from daemons.protocol.ids import room_hex
from daemons.protocol.topology import InstanceInfo

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
    waits,
    whole,
)

ONE, TWO = {"text": "a"}, {"text": "ab"}
GOOD = {"text": "good"}


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PAUSE_S", 0.01)


def once(first: Reply, then: Reply) -> Reply:
    """Answer the first request one way and all others another way."""
    left = [first]

    async def reply(request: web.Request) -> web.StreamResponse:
        return await (left.pop() if left else then)(request)

    return reply


async def asked(lb: Balancer, **fields: Any) -> tuple[int, Any, Any]:
    """Return status, body and headers of one request."""
    async with lb.post("/generate", {"text": "a", **fields}) as response:
        return *(await read(response)), response.headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "bad",
    [
        breaks(),
        explained("instance.draining", 503, peer="d0", stage="intake"),
        explained("peer.died", 502, peer="p9"),
        explained("transfer.failed", 502),
        whole({"detail": "not ours"}, 503),
    ],
)
async def test_a_try_that_failed_with_nothing_sent_is_made_again_on_another_pair(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker, bad: Reply, *, stream: bool
) -> None:
    good = events(ONE, TWO) if stream else whole(GOOD)
    d0, d1 = await fake("d0", bad), await fake("d1", good)
    if stream:
        p0.reply = events(ONE)
    lb = await balancer(p0, d0, d1, decode_policy="round_robin", first_token="decode")
    async with lb.post("/generate", {"text": "a", "stream": stream}) as response:
        assert response.status == 200
        assert response.headers["X-PD-Attempt"] == "2"
        rooms = [int(response.headers["X-PD-Room"], 16)]
        assert b"good" in await response.read() or stream
    first, second = json.loads(d0.bodies[0]), d1.said
    assert second["bootstrap_attempt"] == 2
    assert "bootstrap_attempt" not in first
    assert second["bootstrap_room"] == rooms[0] != first["bootstrap_room"]
    (failed,) = lb.service.recorder.stories(first["bootstrap_room"])
    (told,) = lb.service.recorder.stories(second["bootstrap_room"])
    assert failed.failure is not None
    assert failed.lines[-1].because == "retried"
    assert (told.attempt, told.failure) == (2, None)
    assert told.facts["retry_of"] == room_hex(failed.room)
    assert (lb.service.metrics.served, lb.service.metrics.failed) == (1, 0)
    await idle(lb)


async def test_nothing_is_tried_again_once_the_client_has_something(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    cut = asyncio.Event()
    cut.set()
    d0 = await fake("d0", events(ONE, between=cut, cut=True))
    lb = await balancer(p0, d0, first_token="decode")
    async with lb.post("/generate", {"text": "a", "stream": True}) as response:
        body = await response.read()
    assert b"lb.worker_gone" in body
    assert len(d0.bodies) == 1
    await idle(lb)


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429, 500])
async def test_what_is_the_clients_or_a_defect_is_told_at_once(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker, status: int
) -> None:
    d0 = await fake("d0", whole({"error": {"message": "no"}}, status))
    d1 = await fake("d1", whole({"error": {"message": "no"}}, status))
    lb = await balancer(p0, d0, d1)
    assert (await asked(lb))[0] == status
    assert len(d0.bodies) + len(d1.bodies) == 1
    await idle(lb)


async def test_tries_end_with_the_last_cause_and_its_attempt(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    d0 = await fake("d0", explained("peer.unreachable", 502, peer="p0"))
    lb = await balancer(p0, d0, attempts=3)
    status, answer, headers = await asked(lb)
    assert (status, answer["error"]["cause"]) == (502, "peer.unreachable")
    assert headers["X-PD-Attempt"] == "3"
    assert len(d0.bodies) == 3
    assert lb.service.metrics.retries == 2
    await idle(lb)


async def test_an_empty_budget_ends_the_tries(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    d0 = await fake("d0", explained("peer.died", 502))
    lb = await balancer(p0, d0, retry_share=0, retry_reserve=1)
    await asked(lb)
    await asked(lb)
    assert len(d0.bodies) == 3
    await idle(lb)


async def test_a_retry_waits_for_a_worker_that_comes_back_and_finds_it(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    d0 = await fake("d0", explained("instance.stopping", 503, peer="d0", stage="intake"))
    lb = await balancer(p0, d0)
    asking = asyncio.create_task(asked(lb))
    async with asyncio.timeout(10):
        while not lb.service.gate.waiting:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.001)
    d0.reply = whole(GOOD)
    lb.service.fleet.see([p0.info(), d0.info(epoch=2)], time.monotonic())
    assert (await asking)[:2] == (200, GOOD)
    await idle(lb)


async def test_a_retry_that_finds_nobody_tells_why_the_first_try_failed(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    d0.reply = explained("instance.stopping", 503, peer="d0", stage="intake")
    lb = await balancer(p0, d0, retry_wait_s=0.02)
    status, answer, _ = await asked(lb)
    assert (status, answer["error"]["cause"]) == (503, "instance.stopping")
    assert len(d0.bodies) == 1
    await idle(lb)


async def test_only_the_guilty_worker_gets_a_failure_on_its_account(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    d0 = await fake("d0", once(whole({}, 500), whole(GOOD)))
    lb = await balancer(p0, d0)
    assert (await asked(lb))[0] == 500
    accounts = lb.service.pairing.breakers.accounts
    assert list(accounts) == [("d0", 1)]
    assert (await asked(lb))[0] == 200
    assert accounts[("d0", 1)].in_a_row == 0
    await idle(lb)


async def test_a_worker_that_keeps_failing_rests_while_another_serves(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    d0, d1 = await fake("d0", whole({}, 500)), await fake("d1", whole(GOOD))
    lb = await balancer(p0, d0, d1, decode_policy="round_robin", breaker_failures=2)
    statuses = [(await asked(lb))[0] for _ in range(10)]
    assert statuses.count(500) == 2
    async with lb.get("/fleet") as response:
        states = {row["instance"]: row["breaker"] for row in (await response.json())["workers"]}
    assert states == {"p0": "closed", "d0": "open", "d1": "closed"}
    await idle(lb)


async def test_a_decode_serves_alone_where_no_prefill_is_left(
    balancer: MakeBalancer, d0: FakeWorker
) -> None:
    lb = await balancer(d0, local_prefill="when_alone")
    status, answer, headers = await asked(lb, bootstrap_host="client's", local_prefill=False)
    assert (status, answer) == (200, {"text": "decode"})
    room = int(headers["X-PD-Room"], 16)
    assert d0.said == {"text": "a", "bootstrap_room": room, "local_prefill": True}
    (story,) = lb.service.recorder.stories(room)
    assert story.facts["local_prefill"] == "true"
    assert story.facts["why"].startswith("local prefill, no prefill is ready")
    assert story.peer == "d0 alone"
    await idle(lb)


async def test_an_error_of_a_lone_decode_is_told_and_its_stream_is_passed_on(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    d0 = await fake("d0", once(whole({"error": {"message": "no"}}, 400), events(ONE, TWO)))
    lb = await balancer(d0, local_prefill="when_alone")
    assert (await asked(lb))[0] == 400
    async with lb.post("/generate", {"text": "a", "stream": True}) as response:
        assert (await response.read()).count(b"data: ") == 3
    await idle(lb)


async def test_before_a_refusal_the_fleet_is_looked_at_once_more(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0)
    looks = 0

    async def look() -> list[InstanceInfo]:
        nonlocal looks
        looks += 1
        return [p0.info(), d0.info()]

    lb.service.serving.watch = Watch(lb.service.fleet, look)
    assert (await asked(lb))[0] == 200
    assert (await asked(lb))[0] == 200
    assert looks == 1
    await idle(lb)


async def test_a_client_with_too_much_open_is_429_and_others_are_served(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    go = asyncio.Event()
    d0 = await fake("d0", waits(go, whole(GOOD)))
    lb = await balancer(p0, d0, client_rooms=1)
    first = asyncio.create_task(asked(lb))
    await happens(d0.came)
    status, answer, headers = await asked(lb)
    assert (status, answer["error"]["cause"], headers["Retry-After"]) == (
        429,
        "client.limited",
        "1",
    )
    assert answer["error"]["retry"] is True
    go.set()
    assert (await first)[0] == 200
    assert (await asked(lb))[0] == 200
    assert len(d0.bodies) == 2
    await idle(lb)


async def test_a_client_that_sends_too_fast_is_told_when_to_come_back(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0, client_rate=0.001, client_burst=2)
    assert [(await asked(lb))[0] for _ in range(3)] == [200, 200, 429]
    assert int((await asked(lb))[2]["Retry-After"]) > 900
    await idle(lb)


async def test_a_worker_that_is_lost_loses_what_it_has_not_begun_to_tell(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    d0, d1 = await fake("d0", waits()), await fake("d1", whole(GOOD))
    lb = await balancer(p0, d0, d1, decode_policy="round_robin")
    asking = asyncio.create_task(asked(lb))
    await happens(d0.came)
    lb.service.serving.lose(d0.worker, "it does not answer")
    status, answer, headers = await asking
    assert (status, answer, headers["X-PD-Attempt"]) == (200, GOOD, "2")
    await happens(d0.left)
    assert [pair.decode.name for pair in lb.service.fleet.pairs(time.monotonic())] == ["d1"]
    await idle(lb)


async def test_the_place_of_a_listed_prefill_stands_as_urls_write_it(
    balancer: MakeBalancer,
) -> None:
    places = {"p4": "10.0.0.1", "p6": "fd00::6"}
    listed = [
        StaticWorker(instance=name, role="prefill", address=at, port=30000, bootstrap_port=8998)
        for name, at in places.items()
    ]
    lb = await balancer(static_workers=tuple(listed))
    assert lb.service.serving.meetings == {"p4": ("10.0.0.1", 8998), "p6": ("[fd00::6]", 8998)}
