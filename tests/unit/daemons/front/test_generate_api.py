"""``/generate`` over HTTP, with a rank that the test plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from daemons.front import rooms as rooms_module
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import Cancel, Finish, FinishReason, Submit, TokenOut
from daemons.protocol.topology import Role, State
from tests.support.front_bench import ROOM, Bench, front_bench, prefill_info
from tests.support.tiny_model import EOS

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with front_bench(tmp_path) as one:
        yield one


class Asked:
    """A request on its way."""

    def __init__(self, bench: Bench, headers: dict[str, str] | None = None, **body: Any) -> None:
        self._bench, self._headers = bench, headers
        self._body = bench.body(**body)
        self.task = asyncio.create_task(self._ask())

    async def _ask(self) -> tuple[int, str]:
        async with self._bench.http.post(
            "/generate", json=self._body, headers=self._headers
        ) as answer:
            return answer.status, await answer.text()

    async def json(self, status: int = 200) -> Any:
        async with asyncio.timeout(10):
            got, text = await self.task
        assert got == status, text
        return json.loads(text)

    async def error(self, status: int) -> dict[str, Any]:
        found: dict[str, Any] = (await self.json(status))["error"]
        return found

    async def events(self) -> list[Any]:
        async with asyncio.timeout(10):
            got, text = await self.task
        assert got == 200, text
        lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def event(answer: aiohttp.ClientResponse) -> Any:
    async with asyncio.timeout(10):
        raw = await answer.content.readuntil(b"\n\n")
    return json.loads(raw.removeprefix(b"data: "))


async def test_a_text_in_a_text_out(bench: Bench) -> None:
    asked = Asked(bench, text="hi", sampling_params={"max_new_tokens": 3, "temperature": 0})
    submit = await bench.rank.hear(Submit)
    assert (submit.room, submit.prompt, submit.prefill) == (ROOM, tuple(b"hi"), "p0")
    assert (submit.sampling.max_tokens, submit.sampling.eos_token_ids) == (3, (EOS,))
    await bench.rank.output(submit, b"yo")
    await bench.rank.output(submit, b"!", LENGTH, cached_tokens=1)
    answer = await asked.json()
    assert (answer["text"], answer["output_ids"]) == ("yo!", list(b"yo!"))
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (2, 3, 1)
    assert meta["bootstrap_room"] == ROOM
    assert meta["id"] == submit.rid


async def test_tokens_in_and_an_end_of_sequence(bench: Bench) -> None:
    asked = Asked(bench, input_ids=[1, 2, 3], sampling_params={"stop_token_ids": [5]})
    submit = await bench.rank.hear(Submit)
    assert submit.prompt == (1, 2, 3)
    assert submit.sampling.stop_token_ids == (5,)
    await bench.rank.output(submit, [104, EOS], STOP, finish_token=EOS)
    answer = await asked.json()
    assert (answer["text"], answer["output_ids"]) == ("h", [104, EOS])
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS}


async def test_a_stream_tells_the_whole_text_so_far_and_its_end(bench: Bench) -> None:
    asked = Asked(bench, text="hi", stream=True)
    submit = await bench.rank.hear(Submit)
    for raw in (b"y", b"\xc3", b"\xa9"):
        await bench.rank.output(submit, raw)
    await bench.rank.output(submit, b"", LENGTH)
    events = await asked.events()
    assert [event["text"] for event in events[:-1]] == ["y", "y", "yé", "yé"]
    assert [event["meta_info"]["finish_reason"] for event in events[:3]] == [None] * 3
    assert events[-2]["meta_info"]["finish_reason"]["type"] == "length"
    assert events[-1] == "[DONE]"


async def test_items_of_a_batch_have_rooms_of_their_own_and_keep_their_order(bench: Bench) -> None:
    rooms = [ROOM + 1, ROOM + 2]
    params = [{"max_new_tokens": 1}, {"max_new_tokens": 2}]
    asked = Asked(bench, text=["a", "b"], bootstrap_room=rooms, sampling_params=params, rid="r")
    submits = [await bench.rank.hear(Submit) for _ in rooms]
    assert [submit.room for submit in submits] == rooms
    assert [submit.sampling.max_tokens for submit in submits] == [1, 2]
    assert [submit.rid for submit in submits] == ["r_0", "r_1"]
    await bench.rank.output(submits[1], b"yy", LENGTH)
    await bench.rank.output(submits[0], b"x", LENGTH)
    assert [answer["text"] for answer in await asked.json()] == ["x", "yy"]


async def test_a_streamed_batch_tells_whose_each_event_is(bench: Bench) -> None:
    asked = Asked(bench, input_ids=[[1], [2]], bootstrap_room=[ROOM, ROOM + 1], stream=True)
    submits = [await bench.rank.hear(Submit) for _ in range(2)]
    await bench.rank.output(submits[1], b"y", LENGTH)
    await bench.rank.output(submits[0], b"x", LENGTH)
    events = await asked.events()
    assert [(event["index"], event["text"]) for event in events[:-1]] == [(1, "y"), (0, "x")]


async def test_a_list_of_one_is_answered_with_a_list_and_takes_a_scalar_room(bench: Bench) -> None:
    asked = Asked(bench, text=["a"])
    submit = await bench.rank.hear(Submit)
    await bench.rank.output(submit, b"x", LENGTH)
    assert len(await asked.json()) == 1


async def test_log_probabilities_of_prompt_and_output(bench: Bench) -> None:
    asked = Asked(
        bench, text="hi", return_logprob=True, logprob_start_len=0, top_logprobs_num=1,
        return_text_in_logprobs=True,
    )  # fmt: skip
    submit = await bench.rank.hear(Submit)
    assert (submit.sampling.logprobs, submit.sampling.prompt_logprobs) == (1, 1)
    token = TokenOut(97, -0.5, ((98, -0.25),))
    prompt = (TokenOut(104), TokenOut(105, -1.0, ((105, -1.0),)))
    await bench.rank.output(submit, [token], LENGTH, prompt_logprobs=prompt)
    meta = (await asked.json())["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.5, 97, "a"]]
    assert meta["output_top_logprobs"] == [[[-0.25, 98, "b"]]]
    assert meta["input_token_logprobs"] == [[None, 104, "h"], [-1.0, 105, "i"]]


async def test_without_a_start_only_the_outputs_log_probabilities_are_asked_for(
    bench: Bench,
) -> None:
    asked = Asked(bench, text="hi", return_logprob=True)
    submit = await bench.rank.hear(Submit)
    assert (submit.sampling.logprobs, submit.sampling.prompt_logprobs) == (0, None)
    await bench.rank.output(submit, [TokenOut(97, -0.5)], LENGTH)
    assert (await asked.json())["meta_info"]["input_token_logprobs"] == []


async def test_a_stop_string_across_steps_cuts_the_text_and_ends_the_room(bench: Bench) -> None:
    asked = Asked(bench, text="hi", stream=True, sampling_params={"stop": ["END"]})
    submit = await bench.rank.hear(Submit)
    for raw in (b"aE", b"N", b"Db"):
        await bench.rank.output(submit, raw)
    assert await bench.rank.hear(Finish) == Finish(ROOM, 1)
    events = await asked.events()
    assert [event["text"] for event in events[:-1]] == ["a", "a", "a"]
    assert events[-2]["meta_info"]["finish_reason"] == {"type": "stop", "matched": "END"}
    await bench.rank.output(submit, b"late", LENGTH)  # nobody minds


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_is_an_error_with_its_status(
    bench: Bench,
    stream: bool,  # noqa: FBT001
) -> None:
    asked = Asked(bench, text="hi", stream=stream)
    submit = await bench.rank.hear(Submit)
    failure = Failure(Cause.HANDSHAKE_TIMEOUT, "prealloc", "p0", "10 s")
    await bench.rank.output(submit, failure=failure)
    error = await asked.error(504)
    assert (error["room"], error["attempt"], error["stage"]) == (ROOM, 1, "prealloc")
    assert (error["peer"], error["cause"], error["retry"]) == ("p0", "handshake.timeout", True)


async def test_a_failure_after_the_head_is_an_event_and_no_end_mark_follows(bench: Bench) -> None:
    body = bench.body(text="hi", stream=True)
    asking = asyncio.create_task(bench.http.post("/generate", json=body))
    submit = await bench.rank.hear(Submit)
    await bench.rank.output(submit, b"a")
    async with await asking as answer:
        assert answer.status == 200
        assert await event(answer) is not None
        await bench.rank.output(submit, failure=Failure(Cause.PEER_DIED, "transfer", "p0"))
        error = (await event(answer))["error"]
        assert (error["cause"], error["code"], error["room"]) == ("peer.died", 502, ROOM)
        assert await answer.content.read() == b""


async def test_a_failure_of_one_item_ends_the_batch_and_says_whose_it_was(bench: Bench) -> None:
    body = bench.body(text=["a", "b"], bootstrap_room=[ROOM, ROOM + 1], stream=True)
    asking = asyncio.create_task(bench.http.post("/generate", json=body))
    submits = [await bench.rank.hear(Submit) for _ in range(2)]
    await bench.rank.output(submits[0], b"x")
    async with await asking as answer:
        assert (await event(answer))["index"] == 0
        await bench.rank.output(submits[1], failure=Failure(Cause.ENGINE_FAILED, "forward"))
        last = await event(answer)
        assert (last["index"], last["error"]["code"]) == (1, 500)
        assert await answer.content.read() == b""
    cancel = await bench.rank.hear(Cancel)
    assert (cancel.room, cancel.failure.cause) == (ROOM, Cause.ENGINE_FAILED)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_hangs_up_cancels_its_room(bench: Bench, begun: bool) -> None:  # noqa: FBT001
    asked = Asked(bench, text="hi", stream=True)
    submit = await bench.rank.hear(Submit)
    if begun:
        await bench.rank.output(submit, b"a")
    asked.task.cancel()
    cancel = await bench.rank.hear(Cancel)
    assert (cancel.room, cancel.failure.cause) == (ROOM, Cause.CLIENT_DISCONNECTED)
    again = Asked(bench, text="hi")  # the room is free again
    await bench.rank.output(await bench.rank.hear(Submit), b"a", LENGTH)
    await again.json()


async def test_a_room_that_is_open_is_409(bench: Bench) -> None:
    first = Asked(bench, text="hi")
    submit = await bench.rank.hear(Submit)
    error = await Asked(bench, text="hi").error(409)
    assert error["cause"] == "request.duplicate_room"
    await bench.rank.output(submit, b"a", LENGTH)
    await first.json()


async def test_another_attempt_at_an_open_room_is_another_room(bench: Bench) -> None:
    first = Asked(bench, text="hi")
    one = await bench.rank.hear(Submit)
    second = Asked(bench, text="hi", bootstrap_attempt=2)
    two = await bench.rank.hear(Submit)
    assert (one.attempt, two.attempt) == (1, 2)
    await bench.rank.output(two, b"b", LENGTH)
    await bench.rank.output(one, b"a", LENGTH)
    assert [(await asked.json())["text"] for asked in (first, second)] == ["a", "b"]


async def test_a_time_that_the_client_names_goes_to_the_rank(bench: Bench) -> None:
    asked = Asked(bench, {"X-Request-Timeout": "1.5", "X-Request-ID": "abc"}, text="hi")
    submit = await bench.rank.hear(Submit)
    assert (submit.timeout_s, submit.rid) == (1.5, "abc")
    await bench.rank.output(submit, b"a", LENGTH)
    await asked.json()


async def test_a_rank_that_says_nothing_is_504_in_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms_module, "GRACE_S", 0.01)
    asked = Asked(bench, {"X-Request-Timeout": "0.01"}, text="hi")
    assert (await asked.error(504))["cause"] == "total.timeout"
    assert (await bench.rank.hear(Cancel)).failure.cause is Cause.TOTAL_TIMEOUT


async def test_an_abort_by_id_is_499_and_reaches_the_rank(bench: Bench) -> None:
    asked = Asked(bench, text="hi", rid="mine")
    await bench.rank.hear(Submit)
    async with bench.http.post("/abort_request", json={"rid": "mine"}) as answer:
        assert await answer.json() == {"aborted": 1}
    assert (await asked.error(499))["cause"] == "client.cancelled"
    assert (await bench.rank.hear(Cancel)).failure.cause is Cause.CLIENT_CANCELLED


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "exactly one of text and input_ids"),
        ({"text": "a", "input_ids": [1]}, "exactly one of text and input_ids"),
        ({"text": ""}, "no tokens"),
        ({"text": []}, "empty list"),
        ({"text": 5}, "$.text"),
        ({"input_ids": []}, "no tokens"),
        ({"input_ids": ["a"]}, "$.input_ids"),
        ({"input_ids": [1, [2]]}, "not both"),
        ({"input_ids": [258]}, "258"),
        ({"input_ids": [True]}, "$.input_ids"),
        ({"text": "a", "sampling_params": {"max_new_tokens": "3"}}, "max_new_tokens"),
        ({"text": "a", "sampling_params": {"max_tokens": 3}}, "max_tokens"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "a", "sampling_params": [{}, {}]}, "sampling_params: 2 entries"),
        ({"text": "a", "stream": "yes"}, "$.stream"),
        ({"text": "a", "rid": "a b"}, "request id"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 129}, "logprobs"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": -1}, "logprobs"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": 1}, "logprob_start_len"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        ({"text": "a", "image_data": "x"}, "image_data: not supported"),
        ({"text": "a", "lora_path": "x"}, "lora_path: not supported"),
        ({"text": "a", "bootstrap_room": None}, "bootstrap_room is missing"),
        ({"text": "a", "bootstrap_room": "7"}, "bootstrap_room"),
        ({"text": "a", "bootstrap_room": 2**63}, "2**63"),
        ({"text": ["a", "b", "c"], "bootstrap_room": [7, 8]}, "2 entries for 3 prompts"),
        ({"text": "a", "bootstrap_host": "10.9.9.9"}, "the phone book here is 127.0.0.1:8998"),
    ],
)
async def test_a_wrong_request_is_400_with_the_reason_and_never_reaches_the_rank(
    bench: Bench, body: dict[str, Any], text: str
) -> None:
    error = await Asked(bench, **body).error(400)
    assert text in error["message"]
    assert error["cause"] == "request.invalid"
    assert len(bench.desk.rooms) == 0
    asked = Asked(bench, text="z", sampling_params={"max_new_tokens": 1})
    submit = await bench.rank.hear(Submit)
    assert submit.prompt == (ord("z"),)  # nothing came before it
    await bench.rank.output(submit, b"a", LENGTH)
    await asked.json()


async def test_what_is_too_long_is_400_with_both_numbers(bench: Bench) -> None:
    error = await Asked(bench, text="x" * 400).error(400)
    assert error["cause"] == "request.too_long"
    assert "400 tokens, the limit is 399" in error["message"]
    params = {"max_new_tokens": 391}
    error = await Asked(bench, text="x" * 10, sampling_params=params).error(400)
    assert "401, the limit is 400" in error["message"]


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_limits_are_the_same_on_both_sides(tmp_path: Path, role: Role) -> None:
    async with front_bench(tmp_path, role) as bench:
        fits = Asked(bench, text="x" * 399)
        submit = await bench.rank.hear(Submit)
        assert submit.sampling.max_tokens == 1
        assert submit.prefill == "p0"
        await bench.rank.output(submit, b"a", LENGTH)
        assert (await fits.json())["meta_info"]["finish_reason"]["type"] == "length"
        await Asked(bench, text="x" * 400).error(400)
        params = {"max_new_tokens": 2}
        await Asked(bench, text="x" * 399, sampling_params=params).error(400)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000])
async def test_a_body_that_is_no_json_object_is_400(bench: Bench, raw: bytes) -> None:
    async with bench.http.post("/generate", data=raw) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["cause"] == "request.invalid"


async def test_a_body_that_is_too_big_is_413(tmp_path: Path) -> None:
    async with front_bench(tmp_path, max_body_bytes=2048) as bench:
        await Asked(bench, text="x" * 3000).error(413)


async def test_too_many_prompts_are_400(tmp_path: Path) -> None:
    async with front_bench(tmp_path, max_prompt_items=2) as bench:
        asked = Asked(bench, text=["a"] * 3, bootstrap_room=[1, 2, 3])
        assert "the limit is 2" in (await asked.error(400))["message"]


async def test_a_decode_asks_the_phone_book_who_serves_a_prompt_without_a_name(
    bench: Bench,
) -> None:
    bench.book.instances = [prefill_info("p7"), prefill_info("p8")]
    error = await Asked(bench, text="hi", bootstrap_instance=None).error(400)
    assert "p7 (127.0.0.1:1), p8 (127.0.0.1:1)" in error["message"]
    bench.book.instances.pop()
    asked = Asked(bench, text="hi", bootstrap_instance=None)
    submit = await bench.rank.hear(Submit)
    assert submit.prefill == "p7"
    await bench.rank.output(submit, b"a", LENGTH)
    await asked.json()


async def test_a_router_names_the_place_of_a_prefill_that_the_phone_book_knows(
    bench: Bench,
) -> None:
    here = msgspec.structs.replace(prefill_info("p7"), http_host="10.0.0.7", http_port=30000)
    bench.book.instances = [here, prefill_info("p8")]
    at = {"bootstrap_instance": None, "bootstrap_host": "10.0.0.7", "bootstrap_port": 30000}
    asked = Asked(bench, text="hi", **at)
    submit = await bench.rank.hear(Submit)
    assert submit.prefill == "p7"
    await bench.rank.output(submit, b"a", LENGTH)
    await asked.json()
    error = await Asked(bench, text="hi", **{**at, "bootstrap_host": "10.0.0.9"}).error(400)
    assert "nobody registered at 10.0.0.9:30000" in error["message"]


async def test_an_instance_that_is_not_ready_is_503_with_the_reason(tmp_path: Path) -> None:
    async with front_bench(tmp_path, ready=False) as bench:
        error = await Asked(bench, text="hi").error(503)
        assert error["cause"] == "instance.starting"
        assert "the ranks are loading" in error["message"]


async def test_a_decode_that_drains_lets_its_rank_refuse_which_tells_prefill(
    bench: Bench,
) -> None:
    bench.desk.life.enter(State.DRAINING, "an operator drains it")
    asked = Asked(bench, text="hi")
    submit = await bench.rank.hear(Submit)
    failure = Failure(Cause.INSTANCE_DRAINING, "prealloc", "d0")
    await bench.rank.output(submit, failure=failure)
    error = await asked.error(503)
    assert (error["cause"], error["retry"]) == ("instance.draining", True)


async def test_an_instance_that_stops_refuses_new_requests_and_ends_the_open_ones(
    bench: Bench,
) -> None:
    open_one = Asked(bench, text="hi")
    submit = await bench.rank.hear(Submit)
    bench.desk.life.stopping = True
    bench.desk.life.enter(State.DRAINING, "it was told to stop")
    error = await Asked(bench, text="hi", bootstrap_room=ROOM + 1).error(503)
    assert (error["cause"], error["retry"]) == ("instance.stopping", True)
    await bench.rank.output(submit, b"a", LENGTH)
    assert (await open_one.json())["text"] == "a"


async def test_what_a_router_of_sglang_adds_is_let_be(bench: Bench) -> None:
    asked = Asked(
        bench, text="hi", model=None, stream=False, return_text_in_logprobs=False, log_metrics=True,
        return_hidden_states=False, background=False, no_logs=False, return_bytes=False,
        return_entropy=False, bootstrap_host="127.0.0.1", bootstrap_port=8998,
        sampling_params={"temperature": 0.0, "max_new_tokens": 4, "ignore_eos": False, "n": 1,
                         "skip_special_tokens": True, "no_stop_trim": False, "top_k": -1},
    )  # fmt: skip
    submit = await bench.rank.hear(Submit)
    assert submit.sampling.temperature == 0
    await bench.rank.output(submit, b"a", LENGTH)
    await asked.json()


async def test_many_requests_at_once_get_their_own_answers_and_leave_nothing(bench: Bench) -> None:
    bench.http.connector._limit = 200  # type: ignore[union-attr]
    asked = [
        Asked(bench, text=f"{n:03}", bootstrap_room=n + 1, stream=n % 2 == 0) for n in range(100)
    ]
    for _ in asked:
        submit = await bench.rank.hear(Submit)
        await bench.rank.output(submit, submit.prompt, LENGTH)
    for n, one in enumerate(asked):
        found = (await one.events())[0] if n % 2 == 0 else await one.json()
        assert found["text"] == f"{n:03}"
    assert len(bench.desk.rooms) == 0
