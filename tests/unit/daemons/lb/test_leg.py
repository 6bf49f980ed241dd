from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from daemons.lb import leg as leg_module
from daemons.lb.fleet import Worker
from daemons.lb.leg import Answer, Leg, LegFailed, error_event
from daemons.lb.wire.pool import Pool
from daemons.protocol.causes import Cause, Failure
from daemons.runtime.http import Refusal

from .conftest import FakeWorker, MakeWorker, Reply, breaks, events, explained, waits, whole

DEADLINE_S = 10.0
JSON = b"Content-Type: application/json\r\n"


@dataclass
class Taken:
    events: list[bytes] = field(default_factory=list)

    async def __call__(self, events: list[bytes]) -> None:
        self.events += events


def leg_to(worker: Worker, pool: Pool, body: bytes = b"{}", idle_s: float = DEADLINE_S) -> Leg:
    return Leg(pool, worker, "/generate", body, JSON, 1.0, idle_s)


async def failed(leg: Leg, taken: Taken | None = None) -> LegFailed:
    with pytest.raises(LegFailed) as caught:
        await asyncio.wait_for(leg.run(taken or Taken()), DEADLINE_S)
    return caught.value


async def test_a_whole_answer_is_returned(fake: MakeWorker, pool: Pool) -> None:
    worker = await fake("d0", whole({"text": "x"}))
    answer = await leg_to(worker.worker, pool, b'{"a": 1}').run(Taken())
    assert (answer.status, json.loads(answer.body)) == (200, {"text": "x"})
    assert worker.bodies == [b'{"a": 1}']


async def test_a_body_of_megabytes_arrives_whole(fake: MakeWorker, pool: Pool) -> None:
    worker = await fake("d0", whole({}))
    body = b'{"text": "' + b"x" * (3 << 20) + b'"}'
    await leg_to(worker.worker, pool, body).run(Taken())
    assert worker.bodies == [body]
    assert worker.headers[0]["Content-Type"] == "application/json"


async def test_events_are_handed_on_complete_and_in_order(fake: MakeWorker, pool: Pool) -> None:
    taken = Taken()
    worker = await fake("d0", events(*({"n": n, "text": "x" * 5000} for n in range(50))))
    answer = await leg_to(worker.worker, pool).run(taken)
    assert answer.body == b""
    assert [json.loads(e[6:])["n"] for e in taken.events[:-1]] == list(range(50))
    assert taken.events[-1] == b"data: [DONE]"


async def test_an_event_that_comes_in_pieces_is_one_event(fake: MakeWorker, pool: Pool) -> None:
    async def in_pieces(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in (b"da", b'ta: {"n": 1}\n', b"\ndata: [DO", b"NE]\n\n"):
            await response.write(piece)
        return response

    taken = Taken()
    worker = await fake("d0", in_pieces)
    await leg_to(worker.worker, pool).run(taken)
    assert taken.events == [b'data: {"n": 1}', b"data: [DONE]"]


async def test_the_worker_sees_a_finished_stream_end_and_not_its_client_leave(
    fake: MakeWorker, pool: Pool
) -> None:
    go = asyncio.Event()

    async def open_end(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: [DONE]\n\n")
        await go.wait()
        return response

    worker = await fake("d0", open_end)
    taken = Taken()
    running = asyncio.create_task(leg_to(worker.worker, pool).run(taken))
    await asyncio.wait_for(worker.came.wait(), DEADLINE_S)
    go.set()
    await asyncio.wait_for(running, DEADLINE_S)
    assert not worker.left.is_set()
    assert worker.ended == 1


async def test_an_error_answer_is_the_workers_own_word(fake: MakeWorker, pool: Pool) -> None:
    worker = await fake("d0", explained("peer.died", 502))
    error = await failed(leg_to(worker.worker, pool))
    assert error.failure == Failure(Cause.PEER_DIED, "transfer", "p0", "told: peer.died")
    assert error.said is not None
    assert error.said.status == 502


async def test_what_a_workers_message_says_twice_is_told_once(fake: MakeWorker, pool: Pool) -> None:
    failure = Failure(Cause.PEER_DIED, "transfer", "p0", "no heartbeat for 5 s")
    body = Refusal.of(failure, room=7, attempt=1).body()
    worker = await fake("d0", whole(body, 502))
    assert (await failed(leg_to(worker.worker, pool))).failure == failure


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (whole({"detail": "what?"}, 422), Cause.REQUEST_INVALID),
        (whole({"error": "text"}, 500), Cause.INTERNAL),
        (whole({"error": {"message": "m", "cause": "from.elsewhere"}}, 500), Cause.INTERNAL),
        (whole([], 302), Cause.REQUEST_INVALID),
    ],
)
async def test_errors_in_other_words_get_the_nearest_cause(
    fake: MakeWorker, pool: Pool, reply: Reply, cause: Cause
) -> None:
    worker = await fake("d0", reply)
    error = await failed(leg_to(worker.worker, pool))
    assert (error.failure.cause, error.said is not None) == (cause, True)


async def test_an_error_event_ends_the_leg_after_the_events_before_it(
    fake: MakeWorker, pool: Pool
) -> None:
    told = {"error": {"message": "m", "code": 504, "cause": "progress.timeout", "stage": "running"}}
    worker = await fake("d0", events({"n": 1}, told, {"n": 2}))
    taken = Taken()
    error = await failed(leg_to(worker.worker, pool), taken)
    assert taken.events == [b'data: {"n": 1}']
    assert error.failure.cause is Cause.PROGRESS_TIMEOUT
    assert error.said is not None
    assert error.said.status == 504


async def test_a_stream_without_its_end_mark_has_not_ended_well(
    fake: MakeWorker, pool: Pool
) -> None:
    worker = await fake("d0", events({"n": 1}, done=False))
    error = await failed(leg_to(worker.worker, pool))
    assert (error.failure.cause, error.failure.stage) == (Cause.LB_WORKER_GONE, "stream")
    assert "end mark" in error.failure.detail


@pytest.mark.parametrize(
    ("reply", "stage"), [(breaks(), "dispatch"), (events({"n": 1}, cut=True), "stream")]
)
async def test_a_cut_connection_names_the_worker_and_the_stage(
    fake: MakeWorker, pool: Pool, reply: Reply, stage: str
) -> None:
    worker = await fake("d0", reply)
    leg = leg_to(worker.worker, pool)
    error = await failed(leg)
    assert (error.failure.cause, error.failure.peer) == (Cause.LB_WORKER_GONE, "d0")
    assert error.failure.stage == stage
    assert (error.said, error.refused, leg.refused) == (None, False, False)
    assert f"decode at 127.0.0.1:{worker.port}" in error.failure.detail


async def test_a_refused_connection_is_told_apart(fake: MakeWorker, pool: Pool) -> None:
    worker = await fake("d0", whole({}))
    known = worker.worker
    await worker.stop()
    leg = leg_to(known, pool)
    error = await failed(leg)
    assert (error.failure.cause, error.refused, leg.refused) == (Cause.LB_WORKER_GONE, True, True)
    assert (
        error.failure.detail
        == f"decode at 127.0.0.1:{known.port}: no connection: Connection refused"
    )


async def test_a_stream_may_take_its_time_to_begin_but_not_between_events(
    fake: MakeWorker, pool: Pool
) -> None:
    begin = asyncio.Event()
    worker = await fake("d0", events({"n": 1}, {"n": 2}, before=begin, between=asyncio.Event()))
    leg = leg_to(worker.worker, pool, idle_s=0.02)
    running = asyncio.create_task(failed(leg))
    await asyncio.wait({running}, timeout=0.1)
    assert not running.done()
    begin.set()
    error = await asyncio.wait_for(running, DEADLINE_S)
    assert (error.failure.cause, error.failure.stage) == (Cause.LB_TIMEOUT, "stream")
    await asyncio.wait_for(worker.left.wait(), DEADLINE_S)


async def test_an_endless_event_is_not_collected(
    fake: MakeWorker, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leg_module, "EVENT_BYTES_LIMIT", 1000)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(b"x" * 10_000)

    worker = await fake("d0", endless)
    error = await failed(leg_to(worker.worker, pool))
    assert "more than 1000 bytes" in error.failure.detail
    await asyncio.wait_for(worker.left.wait(), DEADLINE_S)


async def test_cancelling_a_leg_closes_its_connection(fake: MakeWorker, pool: Pool) -> None:
    for reply in (waits(), events({"n": 1}, between=asyncio.Event())):
        worker: FakeWorker = await fake("d0", reply)
        running = asyncio.create_task(leg_to(worker.worker, pool).run(Taken()))
        await asyncio.wait_for(worker.came.wait(), DEADLINE_S)
        running.cancel()
        await asyncio.wait_for(worker.left.wait(), DEADLINE_S)
        await asyncio.wait({running})


def test_the_last_event_of_a_failed_stream_is_the_workers_word_or_ours() -> None:
    refusal = Refusal.of(Failure(Cause.LB_WORKER_GONE, "stream", "d0"), room=7, attempt=1)
    ours = json.loads(error_event(None, refusal)[6:])
    assert (ours["error"]["cause"], ours["error"]["room"]) == ("lb.worker_gone", 7)
    said = Answer(502, b'{"error": {"cause": "peer.died"}}', {})
    assert json.loads(error_event(said, refusal)[6:]) == {"error": {"cause": "peer.died"}}
    assert json.loads(error_event(Answer(502, b"<html>", {}), refusal)[6:]) == ours


async def test_a_worker_that_refuses_our_token_is_our_fault_and_not_the_clients(
    fake: MakeWorker, pool: Pool
) -> None:
    worker = await fake("d0", explained("request.unauthorized", 401, peer="", stage="http"))
    error = await failed(leg_to(worker, pool))
    assert error.failure.cause is Cause.LB_KEY_MISMATCH
    assert error.failure.http_status == 502
    assert error.said is None
