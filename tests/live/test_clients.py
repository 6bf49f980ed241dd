"""Others' clients talk to pd-lb unchanged."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import openai
import pytest

from tests.support.cluster import Cluster, eventually, get, post

pytestmark = pytest.mark.live
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


@pytest.fixture
def client(smollm: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smollm.lb}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_openai_client_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2-135m-instruct",
        messages=QUESTION,  # type: ignore[arg-type]
        max_tokens=24,
        temperature=0,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_the_openai_client_streams_the_same_text(client: openai.OpenAI) -> None:
    asked = {
        "model": "smollm2-135m-instruct",
        "messages": QUESTION,
        "max_tokens": 24,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**asked).choices[0]  # type: ignore[call-overload]
    chunks = list(client.chat.completions.create(**asked, stream=True))  # type: ignore[call-overload]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason


def test_the_openai_client_completes_and_lists_models(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2-135m-instruct",
        prompt=["The capital of France is", "Two plus two is"],
        max_tokens=8,
        temperature=0,
        logprobs=2,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert "Paris" in answer.choices[0].text
    first = answer.choices[0].logprobs
    assert first is not None
    assert len(first.token_logprobs or []) == 8
    assert [model.id for model in client.models.list()] == ["smollm2-135m-instruct"]


def test_a_bad_request_is_the_clients_error_with_the_reason(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(
            model="smollm2-135m-instruct",
            messages=QUESTION,  # type: ignore[arg-type]
            max_tokens=-1,
        )


def test_prompt_logprobs_come_from_prefill_and_number_the_prompt(smollm: Cluster) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 4}
    body = {"text": "The capital of France is", "sampling_params": sampling}
    asked = {**body, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 3}
    status, answer = post(f"{smollm.lb}/generate", asked)
    assert status == 200
    meta = answer["meta_info"]
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
    assert len(meta["output_token_logprobs"]) == meta["completion_tokens"] == 4
    assert all(len(top) == 3 for top in meta["output_top_logprobs"])


def test_a_stop_string_that_begins_in_the_first_token_ends_the_text(smollm: Cluster) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 12}
    body = {"text": "The capital of France is", "sampling_params": sampling}
    _, free = post(f"{smollm.lb}/generate", body)
    stop = free["text"][1:8]  # over the seam between prefill's token and decode's
    _, cut = post(
        f"{smollm.lb}/generate", {**body, "sampling_params": {**sampling, "stop": [stop]}}
    )
    assert cut["text"] == free["text"][:1]
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert eventually(lambda: smollm.is_idle("d0")), smollm.status("d0")


def test_a_client_that_leaves_frees_everything(smollm: Cluster) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True}
    body = {"text": "Count to a thousand:", "sampling_params": sampling, "stream": True}
    request = urllib.request.Request(
        f"{smollm.lb}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.readline()
        assert eventually(lambda: smollm.status("d0")["rooms"]["running"] == 1)
    for instance in ("d0", "p0"):
        assert eventually(lambda name=instance: smollm.is_idle(name)), smollm.status(instance)
    counters = smollm.status("d0")["counters"]
    assert counters["failed:client.disconnected"] >= 1


def test_prefill_and_decode_have_the_story_of_a_room(smollm: Cluster) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 4}
    _, answer = post(f"{smollm.lb}/generate", {"text": "Hello", "sampling_params": sampling})
    room = answer["meta_info"]["bootstrap_room"]
    (prefill,) = get(f"{smollm.url('p0')}/rooms/{room}")["stories"]
    (decode,) = get(f"{smollm.url('d0')}/rooms/{room}")["stories"]
    entered = [line["entered"] for line in prefill["lines"] if line["entered"] != line["left"]]
    assert entered == ["bootstrap", "waiting", "forward", "inflight", ""]
    entered = [line["entered"] for line in decode["lines"] if line["entered"] != line["left"]]
    assert entered == ["prealloc", "transfer", "prebuilt", "running", ""]
    assert prefill["peer"] == "d0"
    assert decode["peer"] == "p0"
