from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from aiohttp import web

from daemons.lb import dispatch
from daemons.protocol.ids import ROOM_LIMIT, room_hex
from daemons.protocol.topology import Fingerprint, State

from .conftest import (
    DEADLINE_S,
    FakeWorker,
    MakeBalancer,
    MakeWorker,
    Reply,
    breaks,
    explained,
    happens,
    idle,
    read,
    waits,
    whole,
)

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ONE, TWO = {"text": "a"}, {"text": "ab"}
FINGERPRINT = Fingerprint("m", "fp32", 16, 2, 2, 8)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 3}}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 3}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
async def test_a_request_reaches_both_legs_with_one_room(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker, path: str, body: dict[str, Any]
) -> None:
    lb = await balancer(p0, d0)
    async with lb.post(path, body) as response:
        assert await read(response) == (200, {"text": "decode"})
    await idle(lb)
    assert p0.bodies == d0.bodies
    assert (p0.paths, d0.paths) == ([path], [path])
    room = d0.said.pop("bootstrap_room")
    assert 0 < room < ROOM_LIMIT
    assert {**d0.said, "bootstrap_room": room} == {
        **body,
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": 8998,
        "bootstrap_room": room,
        "bootstrap_instance": "p0",
    }


async def test_each_item_of_a_batch_has_its_own_room(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    async with lb.post("/v1/completions", {"prompt": ["a", "b", "c"]}) as response:
        assert response.status == 200
    rooms = d0.said["bootstrap_room"]
    assert len(set(rooms)) == 3
    for room in rooms:
        async with lb.get(f"/rooms/{room_hex(room)}") as response:
            assert (await response.json())["stories"][0]["facts"]["batch"] == "3"


async def test_headers_that_belong_to_the_request_are_passed_on_and_others_are_not(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0, total_s=30)
    headers = {
        "X-Request-ID": "r1",
        "traceparent": TRACE,
        "Authorization": "Bearer k",
        "Cookie": "a=b",
    }
    async with lb.post("/generate", {"text": "a"}, headers=headers) as response:
        assert response.status == 200
        assert (response.headers["X-Request-ID"], response.headers["traceparent"]) == ("r1", TRACE)
    for worker in (p0, d0):
        seen = worker.headers[0]
        assert (seen["X-Request-ID"], seen["traceparent"]) == ("r1", TRACE)
        assert seen["Authorization"] == "Bearer k"
        assert 29 < float(seen["X-Request-Timeout"]) <= 30
        assert "Cookie" not in seen


async def test_a_request_without_an_id_is_called_after_its_room_by_both_workers(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    async with lb.post("/generate", {"text": "a"}) as response:
        assert response.status == 200
    named = room_hex(d0.said["bootstrap_room"])
    assert [worker.headers[0]["X-Request-ID"] for worker in (p0, d0)] == [named, named]


@pytest.mark.parametrize(("asked", "told"), [("5", 5), ("9000", 30)])
async def test_a_client_may_shorten_its_time_but_not_lengthen_it(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker, asked: str, told: int
) -> None:
    lb = await balancer(p0, d0, total_s=30)
    async with lb.post("/generate", {}, headers={"X-Request-Timeout": asked}):
        assert told - 1 < float(d0.headers[0]["X-Request-Timeout"]) <= told  # it runs already


async def test_the_shortest_time_is_passed_on_as_a_time(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    headers = {"X-Request-Timeout": "0.000001"}
    async with lb.post("/generate", {"text": "a"}, headers=headers) as response:
        await read(response)
    assert d0.headers[0]["X-Request-Timeout"] == "0.001"
    await idle(lb)


@pytest.mark.parametrize("asked", ["soon", "0", "-1", "nan"])
async def test_a_time_that_is_none_is_refused(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker, asked: str
) -> None:
    lb = await balancer(p0, d0)
    async with lb.post("/generate", {}, headers={"X-Request-Timeout": asked}) as response:
        assert response.status == 400
    assert d0.bodies == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"prompt": []}', b'{"prompt": ["a", "b", "c"]}']
)
async def test_a_body_that_cannot_be_served_is_400_and_reaches_no_worker(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker, body: bytes
) -> None:
    lb = await balancer(p0, d0, max_items=2)
    async with lb.post("/v1/completions", body) as response:
        status, answer = await read(response)
    assert (status, answer["error"]["cause"]) == (400, "request.invalid")
    assert p0.bodies == d0.bodies == []
    await idle(lb)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failing", ["p0", "d0"])
async def test_the_client_gets_status_and_body_of_the_leg_that_failed(
    balancer: MakeBalancer, fake: MakeWorker, failing: str, *, stream: bool
) -> None:
    bad = explained("queue.full", 503, peer=failing, stage="queue")
    p0 = await fake("p0", bad if failing == "p0" else waits())
    d0 = await fake("d0", bad if failing == "d0" else waits())
    lb = await balancer(p0, d0)
    async with lb.post("/generate", {"text": "a", "stream": stream}) as response:
        status, answer = await read(response)
    assert (status, answer["error"]["cause"], answer["error"]["peer"]) == (
        503,
        "queue.full",
        failing,
    )
    await happens((d0 if failing == "p0" else p0).left)
    await idle(lb)


async def test_a_killed_decode_is_told_with_room_stage_peer_and_cause(
    balancer: MakeBalancer, fake: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "EXPLAIN_S", 0.01)
    p0, d0 = await fake("p0", waits()), await fake("d0", breaks())
    lb = await balancer(p0, d0, attempts=1)
    async with lb.post("/generate", {"text": "a"}) as response:
        status, answer = await read(response)
    error = answer["error"]
    assert status == 502
    assert (error["room"], error["attempt"]) == (d0.said["bootstrap_room"], 1)
    assert (error["stage"], error["peer"], error["cause"]) == ("dispatch", "d0", "lb.worker_gone")
    assert error["retry"] is True
    async with lb.get(f"/rooms/{room_hex(error['room'])}") as response:
        (story,) = (await response.json())["stories"]
    assert story["failure"]["cause"] == "lb.worker_gone"
    assert story["facts"]["why"] == "p0 least rooms: 0; d0 fewest rooms: 0"
    await idle(lb)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_both_legs(
    balancer: MakeBalancer, fake: MakeWorker, *, stream: bool
) -> None:
    p0, d0 = await fake("p0", waits()), await fake("d0", waits())
    lb = await balancer(p0, d0)
    asking = asyncio.ensure_future(lb.post("/generate", {"text": "a", "stream": stream}))
    await happens(p0.came)
    await happens(d0.came)
    asking.cancel()
    await happens(p0.left)
    await happens(d0.left)
    await idle(lb)
    (row,) = lb.service.recorder.rows(time.time())
    assert row.failure is not None
    assert row.failure.cause.value == "client.disconnected"


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422, 429])
async def test_a_4xx_never_takes_a_worker_out(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker, status: int
) -> None:
    d0 = await fake("d0", whole({"error": {"message": "no"}}, status))
    lb = await balancer(p0, d0)
    for _ in range(30):
        async with lb.post("/generate", {"text": "a"}) as response:
            assert response.status == status
    assert len(d0.bodies) == 30
    await idle(lb)


async def test_a_worker_that_refuses_connections_is_out_until_the_fleet_hears_of_it(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker, d0: FakeWorker
) -> None:
    d1 = await fake("d1", whole({"text": "other"}))
    lb = await balancer(p0, d0, d1, decode_policy="round_robin", attempts=1)
    gone = d0.info()
    await d0.stop()
    async with lb.post("/generate", {"text": "a"}) as response:
        status, answer = await read(response)
    assert (status, answer["error"]["peer"]) == (502, "d0")
    for _ in range(6):
        async with lb.post("/generate", {"text": "a"}) as response:
            assert await read(response) == (200, {"text": "other"})
    now = time.monotonic()
    lb.service.fleet.see([p0.info(), gone, d1.info()], now + 5)
    assert [pair.decode.name for pair in lb.service.fleet.pairs(now + 5)] == ["d0", "d1"]
    await idle(lb)


@pytest.mark.parametrize("cause", ["instance.draining", "instance.stopping"])
async def test_a_worker_that_says_that_it_is_leaving_gets_no_more_requests(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker, d0: FakeWorker, cause: str
) -> None:
    d0.reply = explained(cause, 503, peer="d0", stage="intake")
    d1 = await fake("d1", whole({"text": "other"}))
    lb = await balancer(p0, d0, d1, decode_policy="round_robin", attempts=1)
    async with lb.post("/generate", {"text": "a"}) as response:
        status, answer = await read(response)
    assert (status, answer["error"]["cause"]) == (503, cause)
    for _ in range(6):
        async with lb.post("/generate", {"text": "a"}) as response:
            assert await read(response) == (200, {"text": "other"})
    assert len(d0.bodies) == 1
    await idle(lb)


async def test_a_worker_that_tells_of_anothers_leaving_stays(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    d0.reply = explained("instance.stopping", 503, peer="p9")
    lb = await balancer(p0, d0, attempts=1)
    for _ in range(3):
        async with lb.post("/generate", {"text": "a"}) as response:
            assert (await read(response))[0] == 503
    assert len(d0.bodies) == 3
    await idle(lb)


@pytest.mark.parametrize("killed", [False, True])
async def test_after_a_lost_connection_a_worker_stays_if_it_still_listens(
    balancer: MakeBalancer,
    fake: MakeWorker,
    p0: FakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    *,
    killed: bool,
) -> None:
    monkeypatch.setattr(dispatch, "EXPLAIN_S", 0.01)
    d0 = await fake("d0", breaks())
    lb = await balancer(p0, d0)
    if killed:
        d0.reply = last_words(d0)
    async with lb.post("/generate", {"text": "a"}) as response:
        assert response.status == 502
    d0.reply = whole({})
    for look in list(lb.service.looking):
        await asyncio.wait_for(look, DEADLINE_S)
    assert [pair.decode.name for pair in lb.service.fleet.pairs(time.monotonic())] == (
        [] if killed else ["d0"]
    )
    await idle(lb)


def last_words(worker: FakeWorker) -> Reply:
    """Stop listening, then cut the connection, as a killed process does."""

    async def reply(request: web.Request) -> web.StreamResponse:
        assert worker.site is not None
        worker.site.listener.close()
        return await breaks()(request)

    return reply


async def test_without_a_pair_the_answer_is_503_with_the_reason(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer()
    async with lb.post("/generate", {"text": "a"}) as response:
        status, answer = await read(response)
        assert "Retry-After" in response.headers
    assert (status, answer["error"]["cause"]) == (503, "lb.no_pair")
    assert "no prefill is registered" in answer["error"]["message"]
    lb.see(p0)
    async with lb.post("/generate", {"text": "a"}) as response:
        assert "no decode is registered" in (await response.json())["error"]["message"]
    other = Fingerprint("m", "bf16", 16, 2, 2, 8)
    infos = [p0.info(fingerprint=FINGERPRINT), d0.info(fingerprint=other)]
    lb.service.fleet.see(infos, time.monotonic())
    async with lb.post("/generate", {"text": "a"}) as response:
        assert "dtype: p0 'fp32', d0 'bf16'" in (await response.json())["error"]["message"]


async def test_a_health_check_can_have_a_token_made(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    async with lb.get("/health_generate") as response:
        assert response.status == 200
    assert d0.said["sampling_params"]["max_new_tokens"] == 1
    assert p0.paths == d0.paths == ["/generate"]


async def test_a_draining_balancer_takes_no_more_requests(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    lb.service.state = State.DRAINING
    async with lb.post("/generate", {"text": "a"}) as response:
        status, answer = await read(response)
    assert (status, answer["error"]["cause"]) == (503, "instance.draining")
    async with lb.get("/health") as response:
        assert response.status == 503


async def test_many_requests_at_once_leave_no_trace(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)

    async def one() -> int:
        async with lb.post("/generate", {"text": ["a", "b"]}) as response:
            status: int = response.status
            return status

    assert set(await asyncio.gather(*(one() for _ in range(100)))) == {200}
    rooms = [room for body in d0.bodies for room in json.loads(body)["bootstrap_room"]]
    assert len(set(rooms)) == 200
    await idle(lb)


async def test_load_is_counted_while_a_room_is_in_flight(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    go = asyncio.Event()
    d0 = await fake("d0", waits(go, whole({})))
    lb = await balancer(p0, d0)
    asking = asyncio.ensure_future(lb.post("/generate", {"text": ["a", "b", "c"]}))
    await happens(d0.came)
    async with asyncio.timeout(DEADLINE_S):
        while lb.service.fleet.rooms["p0", 1]:  # noqa: ASYNC110 - prefill's leg ends first
            await asyncio.sleep(0)
    assert lb.service.fleet.rooms["d0", 1] == 3
    go.set()
    (await asking).release()
    await idle(lb)


async def test_a_bug_in_an_exchange_fails_the_request_and_not_the_daemon(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lb = await balancer(p0, d0)

    def bug(*_: object) -> bytes:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(dispatch.merge, "into_answer", bug)
    async with lb.post("/generate", {"text": "a", "return_logprob": True}) as response:
        status, answer = await read(response)
    assert (status, answer["error"]["cause"]) == (500, "internal.error")
    assert "ZeroDivisionError: a bug" in answer["error"]["message"]
    async with lb.post("/generate", {"text": "a"}) as response:
        assert response.status == 200
    await idle(lb)


async def test_workers_on_ipv6_are_served_like_others(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    workers = [await fake(name, whole({"text": name}), "::1") for name in ("p0", "d0")]
    lb = await balancer(*workers)
    async with lb.post("/generate", {"text": "a"}) as response:
        assert await read(response) == (200, {"text": "d0"})
    await idle(lb)


async def test_workers_are_asked_for_uncompressed_answers(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    async with lb.post("/generate", {}, headers={"Accept-Encoding": "gzip"}) as response:
        assert response.status == 200
    assert d0.headers[0]["Accept-Encoding"] == "identity"


async def test_a_request_that_is_cut_at_the_end_tells_its_client_why(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    p0, d0 = await fake("p0", waits()), await fake("d0", waits())
    lb = await balancer(p0, d0)
    asking = asyncio.ensure_future(lb.post("/generate", {"text": "a"}))
    await happens(d0.came)
    lb.service.open.cut_all()
    status, answer = await read(await asking)
    assert (status, answer["error"]["cause"]) == (503, "instance.stopping")
    await happens(p0.left)
    await happens(d0.left)
    await idle(lb)


async def test_rooms_beyond_a_workers_limit_wait_for_a_place(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    go = asyncio.Event()
    d0 = await fake("d0", waits(go, whole({})))
    lb = await balancer(p0, d0, max_rooms_per_decode=2)
    first = asyncio.ensure_future(lb.post("/generate", {"text": ["a", "b"]}))
    await happens(d0.came)
    second = asyncio.ensure_future(lb.post("/generate", ONE))
    async with asyncio.timeout(DEADLINE_S):
        while not lb.service.gate.waiting:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.001)
    assert len(d0.bodies) == 1
    go.set()
    for asking in (first, second):
        response = await asking
        assert response.status == 200
        response.release()
    assert len(d0.bodies) == 2
    await idle(lb)


async def test_a_batch_larger_than_the_limit_goes_to_a_worker_that_has_nothing_else(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0, max_rooms_per_decode=1, max_rooms_per_prefill=1)
    async with lb.post("/generate", {"text": ["a", "b", "c"]}) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("settings", "cause"),
    [({"queue": 0}, "queue.full"), ({"queue_s": 0.02}, "queue.timeout")],
)
async def test_a_request_that_finds_no_place_is_503_early_and_told_when_to_come_back(
    balancer: MakeBalancer,
    fake: MakeWorker,
    p0: FakeWorker,
    settings: dict[str, Any],
    cause: str,
) -> None:
    go = asyncio.Event()
    d0 = await fake("d0", waits(go, whole({})))
    lb = await balancer(p0, d0, max_rooms_per_decode=1, **settings)
    first = asyncio.ensure_future(lb.post("/generate", ONE))
    await happens(d0.came)
    async with lb.post("/generate", TWO) as response:
        error = (await response.json())["error"]
        assert (response.status, error["cause"], error["retry"]) == (503, cause, True)
        assert int(response.headers["Retry-After"]) >= 1
    go.set()
    (await first).release()
    assert len(d0.bodies) == 1
    await idle(lb)


async def test_a_client_that_leaves_the_queue_leaves_no_trace(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    go = asyncio.Event()
    d0 = await fake("d0", waits(go, whole({})))
    lb = await balancer(p0, d0, max_rooms_per_decode=1)
    first = asyncio.ensure_future(lb.post("/generate", ONE))
    await happens(d0.came)
    second = asyncio.ensure_future(lb.post("/generate", TWO))
    async with asyncio.timeout(DEADLINE_S):
        while not lb.service.gate.waiting:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.001)
        second.cancel()
        while lb.service.gate.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    go.set()
    (await first).release()
    await idle(lb)


async def test_a_decode_that_is_known_to_lack_memory_is_picked_only_when_all_do(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker, d0: FakeWorker
) -> None:
    d1 = await fake("d1", whole({"text": "decode"}))
    lb = await balancer(p0, d0, d1)
    credits, now_s = lb.service.pairing.credits, time.monotonic()
    credits.hear(("d0", 1), 0, now_s)
    credits.hear(("d1", 1), 10_000, now_s)
    for _ in range(3):
        async with lb.post("/generate", ONE) as response:
            assert response.status == 200
    assert (len(d0.bodies), len(d1.bodies)) == (0, 3)
    credits.hear(("d1", 1), 0, now_s)
    for _ in range(2):
        async with lb.post("/generate", ONE) as response:
            assert response.status == 200
    assert len(d0.bodies) == 1
