"""OpenAI's own client over a split pair: samples, tools, formats, log-probabilities, streams.

Whatever is asked for, a stream adds up to the whole answer, and the whole answer is what one
process would have said: the engine's own tests compare texts with ``transformers``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from tokenizers import Tokenizer

from tests.support.cluster import Cluster, eventually, get, post
from tests.support.schemas import random_schema

pytestmark = pytest.mark.live
MODEL = "smollm2-135m-instruct"
HI: list[Any] = [{"role": "user", "content": "Name a colour and a number."}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 3},
            },
            "required": ["city", "days"],
        },
    },
}
SCHEMAS = 100


@pytest.fixture
def client(smollm: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smollm.lb}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("temperature", [0, 1.2])
def test_samples_with_seeds_are_what_single_calls_say(
    client: openai.OpenAI, temperature: float
) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": HI,
        "max_tokens": 8,
        "temperature": temperature,
        "extra_body": {"top_k": 50},  # of all 49,152 some lie too close for two sizes of a batch
    }
    several = client.chat.completions.create(**asked, n=4, seed=11)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    singles = [client.chat.completions.create(**asked, seed=11 + n) for n in range(4)]
    texts = [choice.message.content for choice in several.choices]
    assert texts == [one.choices[0].message.content for one in singles]
    assert (len(set(texts)) == 1) == (temperature == 0)
    assert several.usage is not None
    assert several.usage.prompt_tokens == singles[0].usage.prompt_tokens  # type: ignore[union-attr]
    streamed = ["", "", "", ""]
    for chunk in client.chat.completions.create(**asked, n=4, seed=11, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_a_batch_with_samples_is_what_single_calls_say(
    client: openai.OpenAI, smollm: Cluster
) -> None:
    prompts = ["The capital of France is", "Two plus two is"]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "temperature": 1.2}
    both = client.completions.create(**asked, prompt=prompts, n=2, seed=5, echo=True)
    singles = [
        client.completions.create(**asked, prompt=prompt, seed=5 + n, echo=True).choices[0].text
        for prompt in prompts
        for n in range(2)
    ]
    assert [choice.text for choice in both.choices] == singles
    sampling = {"max_new_tokens": 6, "temperature": 1.2, "seed": 5, "n": 2}
    status, answers = post(f"{smollm.lb}/generate", {"text": prompts, "sampling_params": sampling})
    assert status == 200
    texts = [answer["text"] for answer in answers]
    expanded = [prompt for prompt in prompts for _ in range(2)]
    assert [prompt + text for prompt, text in zip(expanded, texts, strict=True)] == singles
    rooms = [answer["meta_info"]["bootstrap_room"] for answer in answers]
    assert len(set(rooms)) == 4


def test_an_echoed_prompt_has_prefills_log_probabilities(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "prompt": "The capital of France is",
        "max_tokens": 4,
        "temperature": 0,
        "logprobs": 2,
        "echo": True,
    }
    whole = client.completions.create(**asked).choices[0]
    assert whole.logprobs is not None
    found = whole.logprobs.token_logprobs
    assert found is not None
    assert found[0] is None
    assert all(one is not None and one <= 0 for one in found[1:])
    assert len(found) == 5 + 4
    only = client.completions.create(**{**asked, "max_tokens": 0})
    assert only.choices[0].text == asked["prompt"]
    assert only.choices[0].logprobs is not None
    assert only.choices[0].logprobs.token_logprobs == pytest.approx(found[:5])
    assert only.usage is not None
    assert only.usage.completion_tokens == 0
    parts = [
        chunk.choices[0].logprobs.token_logprobs
        for chunk in client.completions.create(**asked, stream=True)
        if chunk.choices and chunk.choices[0].logprobs
    ]
    assert [one for part in parts for one in part or ()] == pytest.approx(found)


def test_a_biased_token_is_said_and_a_banned_one_is_not(client: openai.OpenAI) -> None:
    def said(**bias: float) -> list[str]:
        answer = client.completions.create(
            model=MODEL,
            prompt="The capital of France is",
            max_tokens=3,
            temperature=0,
            logprobs=0,
            logit_bias=bias,
        )
        assert answer.choices[0].logprobs is not None
        return answer.choices[0].logprobs.tokens or []

    assert said()[0] == " Paris"
    assert said(**{"7042": -100})[0] != " Paris"
    assert len(set(said(**{"50": 100}))) == 1


@pytest.mark.parametrize("tiny", [("llama", "::1")], indirect=True, ids=["llama-v6"])
def test_answers_keep_to_random_schemas(tiny: tuple[str, Cluster]) -> None:
    """By a model that says random bytes: only the grammar can be what makes JSON of them."""
    model, cluster = tiny
    draw = random.Random(7)
    asked = [(random_schema(draw), draw.randrange(1000)) for _ in range(SCHEMAS)]
    tokens = Tokenizer.from_file(f"{model}/tokenizer.json")
    blanks = {str(tokens.encode(blank).ids[0]): -100 for blank in " \n\t\r"}

    def answer(schema: dict[str, Any], seed: int) -> Any:
        with openai.OpenAI(base_url=f"{cluster.lb}/v1", api_key="none", max_retries=0) as client:
            return client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "x"}],
                max_tokens=450,
                temperature=1,
                seed=seed,
                logit_bias=blanks,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": schema, "strict": True},
                },
            ).choices[0]

    with ThreadPoolExecutor(8) as pool:
        choices = list(pool.map(lambda one: answer(*one), asked))
    for (schema, _), choice in zip(asked, choices, strict=True):
        assert choice.finish_reason == "stop", (schema, choice.message.content)
        jsonschema.validate(json.loads(choice.message.content), schema)


def test_an_object_a_regex_and_a_broken_schema(client: openai.OpenAI, smollm: Cluster) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=60, temperature=0, seed=1,
        response_format={"type": "json_object"},
    ).choices[0]  # fmt: skip
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content or ""), dict)
    assert (answer.message.content or "").lstrip().startswith("{")
    sampling = {"max_new_tokens": 20, "temperature": 1, "regex": "(yes|no)!", "seed": 3}
    _, said = post(f"{smollm.lb}/generate", {"text": "Well?", "sampling_params": sampling})
    assert said["text"] in ("yes!", "no!")
    with pytest.raises(openai.BadRequestError, match="json_schema"):
        client.chat.completions.create(
            model=MODEL,
            messages=HI,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "nonsense"}},
            },
        )


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_tools_make_the_round_trip(client: openai.OpenAI, choice: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Rome?"}]
    asked: dict[str, Any] = {
        "model": MODEL,
        "tools": [TOOL],
        "max_tokens": 100,
        "temperature": 0,
        "parallel_tool_calls": False,
    }
    first = client.chat.completions.create(**asked, messages=messages, tool_choice=choice)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    arguments = json.loads(call.function.arguments)  # type: ignore[union-attr]
    jsonschema.validate(arguments, TOOL["function"]["parameters"])
    told, name, id_ = "", "", ""
    for chunk in client.chat.completions.create(
        **asked, messages=messages, tool_choice=choice, stream=True
    ):
        for piece in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
            id_ = piece.id or id_
            assert piece.function is not None
            name += piece.function.name or ""
            told += piece.function.arguments or ""
    assert (name, json.loads(told), id_[:5]) == ("weather", arguments, "call_")
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    last = client.chat.completions.create(**{**asked, "max_tokens": 8}, messages=messages)
    assert last.choices[0].message.content


def test_names_of_a_request_come_back_and_are_in_the_story(smollm: Cluster) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    with openai.OpenAI(base_url=f"{smollm.lb}/v1", api_key="none", max_retries=0) as client:
        raw = client.completions.with_raw_response.create(
            model=MODEL,
            prompt="Hello",
            max_tokens=2,
            extra_headers={
                "X-Request-ID": "mine-1",
                "traceparent": f"00-{trace}-b7ad6b7169203331-01",
            },
        )
    assert raw.headers["x-request-id"] == "mine-1"
    assert trace in raw.headers["traceparent"]
    room = int(raw.headers["x-pd-room"], 16)

    def facts(instance: str) -> dict[str, str]:
        (story,) = get(f"{smollm.url(instance)}/rooms/{room}")["stories"]
        return dict(story["facts"])

    for instance in ("p0", "d0"):
        assert eventually(lambda one=instance: facts(one).get("trace") == trace)
        assert facts(instance)["rid"] == "mine-1"
