from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from daemons.lb import dispatch
from daemons.lb.dispatch import ClientGone, Exchange, Lingering, Task
from daemons.lb.leg import Answer, Leg, LegFailed
from daemons.lb.order import read_order
from daemons.lb.seam import Seam
from daemons.lb.wire.pool import Pool
from daemons.protocol.causes import Cause

from .conftest import FakeWorker, MakeWorker, Reply, breaks, events, explained, waits, whole

DEADLINE_S = 10.0
ONE, TWO = {"text": "a", "meta_info": {}}, {"text": "ab", "meta_info": {}}
PROMPT = {"text": "a", "meta_info": {"input_token_logprobs": [[-1.5, 7, None]]}}


@pytest.fixture
def http(pool: Pool) -> Pool:
    """What carries the legs."""
    return pool


@dataclass
class Client:
    """The client's end: keeps what it got."""

    got: bytes = b""
    heads: int = 0
    first: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False

    async def begin(self) -> None:
        self.heads += 1

    async def send(self, events: bytes) -> None:
        if self.gone:
            raise ClientGone
        self.got += events
        self.first.set()

    def payloads(self) -> list[Any]:
        parts = [part.removeprefix(b"data: ") for part in self.got.split(b"\n\n")[:-1]]
        return [part if part == b"[DONE]" else json.loads(part) for part in parts]


@dataclass
class Two:
    """An exchange between two fakes."""

    prefill: FakeWorker
    decode: FakeWorker
    exchange: Exchange
    client: Client
    lingering: Lingering
    prefill_ends: list[Task]

    async def run(self) -> Answer:
        return await asyncio.wait_for(self.exchange.run(), DEADLINE_S)

    async def fails(self) -> LegFailed:
        with pytest.raises(LegFailed) as caught:
            await self.run()
        return caught.value


async def two(
    fake: MakeWorker,
    http: Pool,
    prefill: Reply,
    decode: Reply,
    *,
    total_s: float = DEADLINE_S,
    seam: Seam | None = None,
    **fields: Any,
) -> Two:
    p0, d0 = await fake("p0", prefill), await fake("d0", decode)
    order = read_order("/generate", json.dumps({"text": "a", **fields}).encode(), 10)
    body = order.body([7], "127.0.0.1", 8998, "p0")
    legs = [Leg(http, w.worker, "/generate", body, b"", 1.0, DEADLINE_S) for w in (p0, d0)]
    client, lingering, ends = Client(), Lingering(), list[Task]()
    exchange = Exchange(order, *legs, client, total_s, ends.append, lingering.hold, seam)
    return Two(p0, d0, exchange, client, lingering, ends)


async def left(worker: FakeWorker) -> None:
    """Wait until a worker has seen its client leave."""
    await asyncio.wait_for(worker.left.wait(), DEADLINE_S)


Http = Pool


async def test_both_legs_get_equal_bodies_and_decodes_answer_is_the_clients(
    fake: MakeWorker, http: Http
) -> None:
    pair = await two(fake, http, whole({"text": "p"}), whole({"text": "d"}))
    answer = await pair.run()
    assert json.loads(answer.body) == {"text": "d"}
    assert pair.prefill.bodies == pair.decode.bodies
    assert pair.client.heads == 0


async def test_a_stream_goes_out_event_by_event_without_repeats(
    fake: MakeWorker, http: Http
) -> None:
    pair = await two(fake, http, events(ONE), events(ONE, TWO), stream=True)
    answer = await pair.run()
    assert pair.client.payloads() == [ONE, TWO, b"[DONE]"]
    assert (answer.body, pair.client.heads) == (b"", 1)


async def test_the_first_event_is_sent_before_the_second_is_made(
    fake: MakeWorker, http: Http
) -> None:
    more = asyncio.Event()
    pair = await two(fake, http, events(ONE), events(ONE, TWO, between=more), stream=True)
    running = asyncio.create_task(pair.run())
    await asyncio.wait_for(pair.client.first.wait(), DEADLINE_S)
    assert pair.client.payloads() == [ONE]
    more.set()
    await running
    assert pair.client.payloads() == [ONE, TWO, b"[DONE]"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failing", ["p0", "d0"])
async def test_an_error_of_either_leg_is_the_clients_answer_and_ends_the_other_leg(
    fake: MakeWorker, http: Http, failing: str, *, stream: bool
) -> None:
    bad, still = explained("queue.full", 503, stage="queue"), waits()
    legs = (bad, still) if failing == "p0" else (still, bad)
    pair = await two(fake, http, *legs, stream=stream)
    error = await pair.fails()
    assert error.said is not None
    assert (error.said.status, error.failure.cause) == (503, Cause.QUEUE_FULL)
    await left(pair.decode if failing == "p0" else pair.prefill)
    assert pair.client.heads == 0


async def test_an_error_event_before_any_token_is_an_error_and_no_stream(
    fake: MakeWorker, http: Http
) -> None:
    told = {"error": {"message": "m", "code": 503, "cause": "queue.full", "stage": "queue"}}
    pair = await two(fake, http, events(ONE), events(told), stream=True)
    error = await pair.fails()
    assert error.said is not None
    assert (error.said.status, pair.client.heads) == (503, 0)


async def test_a_leg_of_a_stream_that_fails_after_the_first_event_ends_the_other(
    fake: MakeWorker, http: Http
) -> None:
    fail = asyncio.Event()
    pair = await two(
        fake,
        http,
        waits(fail, explained("engine.failed", 500)),
        events(ONE, TWO, between=asyncio.Event()),
        stream=True,
    )
    running = asyncio.create_task(pair.fails())
    await asyncio.wait_for(pair.client.first.wait(), DEADLINE_S)
    fail.set()
    assert (await running).failure.cause is Cause.ENGINE_FAILED
    assert pair.exchange.began
    await left(pair.decode)
    assert b"[DONE]" not in pair.client.got


@pytest.mark.parametrize("broken", ["p0", "d0"])
async def test_when_a_connection_breaks_the_other_legs_explanation_is_told(
    fake: MakeWorker, http: Http, broken: str
) -> None:
    cut = asyncio.Event()
    explains = waits(cut, explained("peer.died", 502, peer=broken))
    legs = (breaks(cut), explains) if broken == "p0" else (explains, breaks(cut))
    pair = await two(fake, http, *legs)
    running = asyncio.create_task(pair.fails())
    for worker in (pair.prefill, pair.decode):
        await asyncio.wait_for(worker.came.wait(), DEADLINE_S)
    cut.set()
    failure = (await running).failure
    assert (failure.cause, failure.peer, failure.stage) == (Cause.PEER_DIED, broken, "transfer")


@pytest.mark.parametrize("broken", ["p0", "d0"])
async def test_when_nobody_explains_a_broken_connection_the_worker_is_named(
    fake: MakeWorker, http: Http, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(dispatch, "EXPLAIN_S", 0.05)
    legs = (breaks(), waits()) if broken == "p0" else (waits(), breaks())
    pair = await two(fake, http, *legs)
    failure = (await pair.fails()).failure
    assert (failure.cause, failure.peer, failure.stage) == (
        Cause.LB_WORKER_GONE,
        broken,
        "dispatch",
    )
    await left(pair.decode if broken == "p0" else pair.prefill)


async def test_decode_killed_in_the_middle_of_a_stream_is_named_with_its_stage(
    fake: MakeWorker, http: Http
) -> None:
    cut = asyncio.Event()
    pair = await two(fake, http, events(ONE), events(ONE, between=cut, cut=True), stream=True)
    running = asyncio.create_task(pair.fails())
    await asyncio.wait_for(pair.client.first.wait(), DEADLINE_S)
    cut.set()
    failure = (await running).failure
    assert (failure.cause, failure.peer, failure.stage) == (Cause.LB_WORKER_GONE, "d0", "stream")
    assert pair.client.payloads() == [ONE]


async def test_a_second_hand_cause_waits_for_the_first_hand_one(
    fake: MakeWorker, http: Http
) -> None:
    pair = await two(
        fake,
        http,
        explained("engine.failed", 500, peer="p0", stage="forward"),
        explained("peer.aborted", 502, peer="p0"),
    )
    assert (await pair.fails()).failure.cause is Cause.ENGINE_FAILED


async def test_a_refused_connection_ends_the_other_leg_without_waiting_for_it(
    fake: MakeWorker, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "EXPLAIN_S", 3600.0)
    pair = await two(fake, http, waits(), whole({}))
    await pair.decode.stop()
    error = await pair.fails()
    assert (error.refused, error.failure.peer) == (True, "d0")


async def test_once_decode_has_ended_well_prefills_leg_matters_no_more(
    fake: MakeWorker, http: Http
) -> None:
    fail = asyncio.Event()
    pair = await two(fake, http, waits(fail, explained("internal.error", 500)), whole({"text": 1}))
    assert json.loads((await pair.run()).body) == {"text": 1}
    (lingering,) = pair.lingering.tasks
    fail.set()
    await asyncio.wait({lingering}, timeout=DEADLINE_S)
    assert isinstance(lingering.exception(), LegFailed)
    assert pair.prefill_ends == [lingering]


async def test_prefills_leg_does_not_outlive_a_good_answer_for_long(
    fake: MakeWorker, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "LINGER_S", 0.01)
    pair = await two(fake, http, waits(), whole({}))
    await pair.run()
    await left(pair.prefill)
    assert pair.lingering.tasks == set()


async def test_prefill_killed_after_the_hand_over_does_not_end_a_good_stream(
    fake: MakeWorker, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "EXPLAIN_S", 0.01)
    cut, more = asyncio.Event(), asyncio.Event()
    pair = await two(fake, http, breaks(cut), events(ONE, TWO, between=more), stream=True)
    running = asyncio.create_task(pair.run())
    await asyncio.wait_for(pair.client.first.wait(), DEADLINE_S)
    cut.set()
    ended, _ = await asyncio.wait({running}, timeout=0.1)
    assert (ended, len(pair.prefill_ends)) == (set(), 1)
    more.set()
    await running
    assert pair.client.payloads() == [ONE, TWO, b"[DONE]"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_takes_too_long_is_ended_on_both_sides(
    fake: MakeWorker, http: Http, *, stream: bool
) -> None:
    pair = await two(fake, http, waits(), waits(), total_s=0.05, stream=stream)
    failure = (await pair.fails()).failure
    assert (failure.cause, failure.stage) == (Cause.LB_TIMEOUT, "dispatch")
    await left(pair.prefill)
    await left(pair.decode)


async def test_a_client_that_is_gone_ends_both_legs(fake: MakeWorker, http: Http) -> None:
    more = asyncio.Event()
    pair = await two(fake, http, waits(), events(ONE, TWO, between=more), stream=True)
    running = asyncio.create_task(pair.run())
    await asyncio.wait_for(pair.client.first.wait(), DEADLINE_S)
    pair.client.gone = True
    more.set()
    with pytest.raises(ClientGone):
        await running
    await left(pair.prefill)


async def test_cancelling_the_exchange_ends_both_legs(fake: MakeWorker, http: Http) -> None:
    pair = await two(fake, http, waits(), waits())
    running = asyncio.create_task(pair.run())
    for worker in (pair.prefill, pair.decode):
        await asyncio.wait_for(worker.came.wait(), DEADLINE_S)
    running.cancel()
    await asyncio.wait({running})
    await left(pair.prefill)
    await left(pair.decode)
    assert len(pair.prefill_ends) == 1


async def test_prompt_logprobs_of_prefill_are_in_the_answer(fake: MakeWorker, http: Http) -> None:
    late = asyncio.Event()
    pair = await two(fake, http, waits(late, whole(PROMPT)), whole(TWO), return_logprob=True)
    running = asyncio.create_task(pair.run())
    await asyncio.wait_for(pair.decode.came.wait(), DEADLINE_S)
    late.set()
    merged = json.loads((await running).body)
    assert merged == {"text": "ab", "meta_info": PROMPT["meta_info"]}


async def test_prompt_logprobs_of_prefill_are_in_the_first_event_of_a_stream(
    fake: MakeWorker, http: Http
) -> None:
    late = asyncio.Event()
    pair = await two(
        fake,
        http,
        events(PROMPT, before=late),
        events(ONE, TWO),
        stream=True,
        return_logprob=True,
    )
    running = asyncio.create_task(pair.run())
    await asyncio.wait_for(pair.decode.came.wait(), DEADLINE_S)
    assert pair.client.heads == 0
    late.set()
    await running
    assert pair.client.payloads() == [PROMPT, TWO, b"[DONE]"]


async def test_a_failing_prefill_ends_a_stream_that_waits_for_its_logprobs(
    fake: MakeWorker, http: Http
) -> None:
    late = asyncio.Event()
    pair = await two(
        fake,
        http,
        waits(late, explained("engine.failed", 500)),
        events(ONE, TWO),
        stream=True,
        return_logprob=True,
    )
    running = asyncio.create_task(pair.fails())
    await asyncio.wait_for(pair.decode.came.wait(), DEADLINE_S)
    late.set()
    assert (await running).failure.cause is Cause.ENGINE_FAILED
    assert pair.client.heads == 0


async def test_a_stream_begins_with_prefills_first_token_before_decode_has_one(
    fake: MakeWorker, http: Http
) -> None:
    late = asyncio.Event()
    ended = {"text": "a", "meta_info": {"finish_reason": {"type": "length"}}}
    pair = await two(
        fake,
        http,
        events(ONE, ended),
        events(ONE, TWO, before=late),
        stream=True,
        seam=Seam(1),
    )
    legs = list[str]()
    pair.exchange.first_token = legs.append
    running = asyncio.create_task(pair.run())
    await asyncio.wait_for(pair.client.first.wait(), DEADLINE_S)
    assert (pair.client.payloads(), legs) == ([ONE], ["prefill"])
    late.set()
    await running
    assert pair.client.payloads() == [ONE, TWO, b"[DONE]"]
    assert (pair.client.heads, legs) == (1, ["prefill", "decode"])


async def test_a_prefill_that_breaks_after_its_first_token_ends_a_stream_that_decode_never_began(
    fake: MakeWorker, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "EXPLAIN_S", 0.01)
    cut = asyncio.Event()
    pair = await two(
        fake, http, events(ONE, between=cut, cut=True), waits(), stream=True, seam=Seam(1)
    )
    running = asyncio.create_task(pair.fails())
    await asyncio.wait_for(pair.client.first.wait(), DEADLINE_S)
    cut.set()
    assert (await running).failure.cause is Cause.LB_WORKER_GONE
    assert pair.exchange.culprit == pair.prefill.worker
    await left(pair.decode)


async def test_a_decode_that_goes_on_from_another_token_is_an_error_and_no_text(
    fake: MakeWorker, http: Http
) -> None:
    late = asyncio.Event()
    other = {"text": "b", "meta_info": {}}
    pair = await two(fake, http, events(ONE), events(other, before=late), stream=True, seam=Seam(1))
    running = asyncio.create_task(pair.fails())
    await asyncio.wait_for(pair.client.first.wait(), DEADLINE_S)
    late.set()
    error = await running
    assert (error.failure.cause, error.failure.peer) == (Cause.INTERNAL, "d0")
    assert "prefill said ('a'" in error.failure.detail
    assert pair.client.payloads() == [ONE]
