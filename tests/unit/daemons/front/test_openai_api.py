"""OpenAI's endpoints over HTTP, with a rank that the test plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import APIError, APIStatusError, AsyncOpenAI

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import Cancel, FinishReason, Submit, TokenOut
from daemons.protocol.topology import Role
from tests.support.front_bench import ROOM, Bench, front_bench
from tests.support.tiny_model import EOS

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
PAIR = {"bootstrap_room": ROOM, "bootstrap_instance": "p0"}
HI: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with front_bench(tmp_path) as one:
        yield one


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{bench.url}/v1", api_key="none", max_retries=0) as one:
        yield one


async def post(bench: Bench, path: str, **body: Any) -> tuple[int, Any]:
    headers = {"X-Request-ID": "me"}
    async with bench.http.post(path, json=bench.body(**body), headers=headers) as answer:
        text = await answer.text()
    if answer.content_type != "text/event-stream":
        return answer.status, json.loads(text)
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return answer.status, [line if line == "[DONE]" else json.loads(line) for line in lines]


async def test_the_openai_client_chats(bench: Bench, client: AsyncOpenAI) -> None:
    asking = asyncio.create_task(
        client.chat.completions.create(
            model="tiny", messages=HI, max_tokens=5, temperature=0, extra_body=PAIR
        )
    )
    submit = await bench.rank.hear(Submit)
    assert bytes(submit.prompt) == b"<|user|>hi\n<|assistant|>"
    assert submit.sampling.max_tokens == 5
    await bench.rank.output(submit, [*b"yo", EOS], STOP, finish_token=EOS)
    answer = await asking
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.content == "yo"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (24, 3)


async def test_the_openai_client_streams_a_chat(bench: Bench, client: AsyncOpenAI) -> None:
    async def read() -> list[Any]:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=HI,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=PAIR,
        )
        return [chunk async for chunk in stream]

    reading = asyncio.create_task(read())
    submit = await bench.rank.hear(Submit)
    await bench.rank.output(submit, b"yo")
    await bench.rank.output(submit, b"!", LENGTH)
    chunks = await reading
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "yo!"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.total_tokens == 27


async def test_the_openai_client_sees_errors_before_and_inside_a_stream(
    bench: Bench, client: AsyncOpenAI
) -> None:
    with pytest.raises(APIStatusError, match="temperature"):
        await client.chat.completions.create(
            model="tiny", messages=HI, temperature=-1, extra_body=PAIR
        )
    asking = asyncio.create_task(
        client.completions.create(model="tiny", prompt="hi", stream=True, extra_body=PAIR)
    )
    submit = await bench.rank.hear(Submit)
    await bench.rank.output(submit, b"a")
    stream = await asking
    assert (await anext(stream)).choices[0].text == "a"
    await bench.rank.output(submit, failure=Failure(Cause.PEER_DIED, "transfer", "p0"))
    with pytest.raises(APIError, match=r"peer\.died"):
        await anext(stream)


async def test_the_openai_client_completes(bench: Bench, client: AsyncOpenAI) -> None:
    asking = asyncio.create_task(
        client.completions.create(model="tiny", prompt="hi", logprobs=1, seed=4, extra_body=PAIR)
    )
    submit = await bench.rank.hear(Submit)
    assert (submit.prompt, submit.sampling.max_tokens) == (tuple(b"hi"), 16)
    assert (submit.sampling.seed, submit.sampling.logprobs) == (4, 1)
    await bench.rank.output(submit, [TokenOut(97, -0.5, ((97, -0.5),))], LENGTH)
    choice = (await asking).choices[0]
    assert (choice.text, choice.finish_reason) == ("a", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a"]
    assert choice.logprobs.token_logprobs == [-0.5]
    assert choice.logprobs.top_logprobs == [{"a": -0.5}]


async def test_the_openai_client_lists_the_model(client: AsyncOpenAI) -> None:
    models = [model async for model in client.models.list()]
    assert [(model.id, model.owned_by) for model in models] == [("tiny", "sglang")]


async def test_a_chats_log_probabilities_come_with_its_chunks(bench: Bench) -> None:
    asking = asyncio.create_task(
        post(bench, "/v1/chat/completions", messages=HI, stream=True, logprobs=True, top_logprobs=1)
    )
    submit = await bench.rank.hear(Submit)
    await bench.rank.output(submit, [TokenOut(97, -0.5, ((98, -0.4),))])
    await bench.rank.output(submit, [TokenOut(98, -0.1)], LENGTH)
    _, events = await asking
    shown = [
        entry["token"]
        for event in events[:-1]
        for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert shown == ["a", "b"]


async def test_prompts_of_a_completion_have_an_index_each(bench: Bench) -> None:
    rooms = [ROOM, ROOM + 1]
    for stream in (False, True):
        asking = asyncio.create_task(
            post(
                bench, "/v1/completions", prompt=[[1], [2]], bootstrap_room=rooms, stream=stream,
                echo=False,
            )
        )  # fmt: skip
        submits = [await bench.rank.hear(Submit) for _ in rooms]
        assert [submit.rid for submit in submits] == ["me_0", "me_1"]
        await bench.rank.output(submits[1], b"y", LENGTH)
        await bench.rank.output(submits[0], b"x", LENGTH)
        _, found = await asking
        answers = [found] if not stream else found[:-1]
        choices = [choice for answer in answers for choice in answer["choices"]]
        assert {choice["index"]: choice["text"] for choice in choices} == {0: "x", 1: "y"}
        assert answers[0]["id"] == "cmpl-me"


async def test_a_prompt_may_be_echoed_in_both_ways(bench: Bench) -> None:
    for stream in (False, True):
        asking = asyncio.create_task(
            post(bench, "/v1/completions", prompt="hi", echo=True, stream=stream)
        )
        submit = await bench.rank.hear(Submit)
        await bench.rank.output(submit, b"a")
        await bench.rank.output(submit, b"b", LENGTH)
        _, found = await asking
        answers = [found] if not stream else found[:-1]
        assert "".join(answer["choices"][0]["text"] for answer in answers) == "hiab"


async def test_a_stop_string_is_told_as_such(bench: Bench) -> None:
    asking = asyncio.create_task(post(bench, "/v1/completions", prompt="hi", stop=["b"]))
    submit = await bench.rank.hear(Submit)
    await bench.rank.output(submit, b"abc")
    _, answer = await asking
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["matched_stop"]) == ("a", "stop", "b")


async def test_a_newer_name_of_max_tokens_wins(bench: Bench) -> None:
    asking = asyncio.create_task(
        post(bench, "/v1/chat/completions", messages=HI, max_tokens=9, max_completion_tokens=3)
    )
    submit = await bench.rank.hear(Submit)
    assert submit.sampling.max_tokens == 3
    await bench.rank.output(submit, b"a", LENGTH)
    await asking


async def test_a_chat_without_a_length_is_cut_to_what_the_model_takes(bench: Bench) -> None:
    asking = asyncio.create_task(post(bench, "/v1/chat/completions", messages=HI))
    submit = await bench.rank.hear(Submit)
    assert submit.sampling.max_tokens == 400 - 24
    await bench.rank.output(submit, b"a", LENGTH)
    await asking


async def test_a_client_that_hangs_up_cancels_its_room(bench: Bench) -> None:
    asking = asyncio.create_task(post(bench, "/v1/chat/completions", messages=HI, stream=True))
    await bench.rank.hear(Submit)
    asking.cancel()
    assert (await bench.rank.hear(Cancel)).failure.cause is Cause.CLIENT_DISCONNECTED


async def test_a_name_of_a_field_that_is_no_text_is_400(bench: Bench) -> None:
    raw = b'{"messages": [{"role": "user", "content": "hi"}], "\xff": 1}'
    head = {"Content-Type": "application/json"}
    async with bench.http.post("/v1/chat/completions", data=raw, headers=head) as answer:
        assert answer.status == 400
        assert "UTF-8" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": {}}, "prompt"),
        ("/v1/completions", {"prompt": "a", "n": 0}, "n: 0"),
        ("/v1/completions", {"prompt": "a", "surprise": 1}, "Unknown parameter: 'surprise'"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 400}, "limit is 400"),
        ("/v1/completions", {"prompt": "a", "logprobs": 1000}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "temperature": "x"}, "$.temperature"),
        ("/v1/completions", {"prompt": "a", "stream_options": 5}, "$.stream_options"),
        ("/v1/completions", {"prompt": "a", "bootstrap_room": None}, "bootstrap_room"),
        ("/v1/completions", {"prompt": "a", "stop": ""}, "stop"),
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": HI, "tools": [{}]}, "$.tools[0]"),
        ("/v1/chat/completions", {"messages": HI, "top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": HI, "response_format": {"type": "x"}}, "text"),
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 377}, "limit is 400"),
    ],
)
async def test_a_wrong_request_is_400_with_the_reason(
    bench: Bench, path: str, body: dict[str, Any], text: str
) -> None:
    status, answer = await post(bench, path, **body)
    assert status == 400
    assert text in answer["error"]["message"]
    assert len(bench.desk.rooms) == 0


async def test_messages_that_the_template_refuses_are_400(bench: Bench) -> None:
    chat = bench.desk.card.chat
    assert chat is not None
    chat._template = chat._template.environment.from_string("{{ raise_exception('no system') }}")
    status, answer = await post(bench, "/v1/chat/completions", messages=HI)
    assert status == 400
    assert "no system" in answer["error"]["message"]


async def test_each_sample_has_a_room_and_a_seed_of_its_own(bench: Bench) -> None:
    rooms = [ROOM + n for n in range(4)]
    asking = asyncio.create_task(
        post(
            bench, "/v1/completions", prompt=["a", "b"], n=2, seed=9, bootstrap_room=rooms,
            max_tokens=1,
        )
    )  # fmt: skip
    submits = [await bench.rank.hear(Submit) for _ in rooms]
    assert [(s.room, bytes(s.prompt), s.sampling.seed) for s in submits] == [
        (ROOM, b"a", 9),
        (ROOM + 1, b"a", 10),
        (ROOM + 2, b"b", 9),
        (ROOM + 3, b"b", 10),
    ]
    for submit, byte in reversed(list(zip(submits, b"wxyz", strict=True))):
        await bench.rank.output(submit, [byte], LENGTH)
    _, answer = await asking
    assert [choice["text"] for choice in answer["choices"]] == list("wxyz")
    assert answer["usage"]["prompt_tokens"] == 2


async def test_the_log_probabilities_of_an_echoed_prompt_are_asked_for(bench: Bench) -> None:
    asking = asyncio.create_task(
        post(bench, "/v1/completions", prompt="hi", echo=True, logprobs=1, max_tokens=0)
    )
    submit = await bench.rank.hear(Submit)
    assert (submit.sampling.prompt_logprobs, submit.sampling.max_tokens) == (1, 1)
    known = (TokenOut(104), TokenOut(105, -0.5, ((105, -0.5),)))
    await bench.rank.output(submit, b"z", LENGTH, prompt_logprobs=known)
    _, answer = await asking
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("hi", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]
    assert answer["usage"]["completion_tokens"] == 0


async def test_the_first_events_of_both_legs_are_the_same(tmp_path: Path) -> None:
    headers = {"X-Request-ID": "me", "X-PD-Created": "1700000000"}
    firsts = []
    for role in (Role.PREFILL, Role.DECODE):
        async with front_bench(tmp_path, role) as bench:

            async def read(bench: Bench = bench) -> list[bytes]:
                asked = bench.body(messages=HI, stream=True, stop=["b!"])
                async with bench.http.post(
                    "/v1/chat/completions", json=asked, headers=headers
                ) as answer:
                    return [line async for line in answer.content if line.strip()]

            reading = asyncio.create_task(read())
            submit = await bench.rank.hear(Submit)
            await bench.rank.output(submit, b"b")  # may begin the stop string: held back
            if role is Role.DECODE:
                await bench.rank.output(submit, b"c")
            await bench.rank.output(submit, b"", LENGTH)
            first, *rest = await reading
            firsts.append(first)
            texts = [json.loads(line[6:])["choices"][0]["delta"] for line in rest[:-1]]
            told = "".join(delta.get("content", "") for delta in texts)
            assert told == ("bc" if role is Role.DECODE else "")
    assert firsts[0] == firsts[1]
    assert json.loads(firsts[0][6:])["choices"][0]["finish_reason"] is None


async def test_tools_are_called_and_thoughts_told_apart_over_http(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    said = b'<think>hm</think><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    async with front_bench(tmp_path, reasoning="think") as bench:
        for stream in (False, True):
            asking = asyncio.create_task(
                post(bench, "/v1/chat/completions", messages=HI, tools=[tool], stream=stream)
            )
            submit = await bench.rank.hear(Submit)
            await bench.rank.output(submit, said)
            await bench.rank.output(submit, [EOS], STOP, finish_token=EOS)
            _, found = await asking
            parts = [choice for one in (found[:-1] if stream else [found])
                     for choice in one["choices"]]  # fmt: skip
            told = [part["delta" if stream else "message"] for part in parts]
            assert [one["reasoning_content"] for one in told if "reasoning_content" in one] == [
                "hm"
            ]
            ((call,),) = [one["tool_calls"] for one in told if "tool_calls" in one]
            assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
            assert parts[-1]["finish_reason"] == "tool_calls"


ROUTERS = {  # what sglang-router 0.3.2 makes of a client's body
    "/v1/chat/completions": {
        "messages": HI,
        "model": "unknown",
        "logprobs": False,
        "max_completion_tokens": 4,
        "stream": False,
        "no_stop_trim": False,
        "ignore_eos": False,
        "continue_final_message": False,
        "skip_special_tokens": True,
        "separate_reasoning": True,
        "stream_reasoning": True,
        "return_hidden_states": False,
    },
    "/generate": {
        "text": "hi",
        "model": None,
        "sampling_params": {"max_new_tokens": 4, "n": 1},
        "stream": False,
        "return_text_in_logprobs": False,
        "log_metrics": True,
        "return_hidden_states": False,
        "background": False,
        "no_logs": False,
        "return_bytes": False,
        "return_entropy": False,
    },
}


@pytest.mark.parametrize("path", ROUTERS)
async def test_what_others_routers_add_to_a_body_passes(bench: Bench, path: str) -> None:
    where = {"bootstrap_host": "127.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 2**62 + 1}
    asking = asyncio.create_task(post(bench, path, **ROUTERS[path], **where))
    submit = await bench.rank.hear(Submit)
    assert submit.sampling.max_tokens == 4
    await bench.rank.output(submit, b"a", LENGTH)
    status, _ = await asking
    assert status == 200
