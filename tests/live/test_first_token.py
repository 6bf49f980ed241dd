"""A stream that begins with prefill's first token says what the whole answer says: every form."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from tests.support.cluster import Cluster, events, get, post

pytestmark = pytest.mark.live
MESSAGES = [{"role": "user", "content": "Write a short line with an emoji 😀 and an ä."}]
CHAT = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0}
TEXT = {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat n=3": ("/v1/chat/completions", {**CHAT, "n": 3, "temperature": 1, "seed": 5}),
    "chat logprobs": ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    "completion": ("/v1/completions", TEXT),
    "completion batch": ("/v1/completions", {**TEXT, "prompt": ["One, two,", "A, B, C,"]}),
    "completion echo": ("/v1/completions", {**TEXT, "echo": True}),
    "one token": ("/v1/completions", {**TEXT, "max_tokens": 1}),
}


def streamed(cluster: Cluster, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the choices of a stream add up to."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    said = list(events(cluster.lb + path, asked))
    assert said.pop() == "[DONE]"
    choices: dict[int, dict[str, Any]] = {}
    for event in map(json.loads, said):
        for choice in event["choices"]:
            told = choices.setdefault(choice["index"], {"text": "", "end": None, "tokens": []})
            assert told["end"] is None, "nothing follows an end"
            delta = choice.get("delta", {})
            told["text"] += delta.get("content") or choice.get("text") or ""
            told["tokens"] += tokens_of(choice.get("logprobs"))
            told["end"] = choice["finish_reason"]
            if "delta" in choice:
                roles = told.setdefault("roles", [])
                roles += [delta["role"]] if "role" in delta else []
    assert all(one.pop("roles", ["assistant"]) == ["assistant"] for one in choices.values())
    return [choices[index] for index in sorted(choices)]


def whole(cluster: Cluster, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    status, answer = post(cluster.lb + path, body)
    assert status == 200, answer
    return [
        {
            "text": one["message"]["content"] if "message" in one else one["text"],
            "end": one["finish_reason"],
            "tokens": tokens_of(one.get("logprobs")),
        }
        for one in answer["choices"]
    ]


def tokens_of(logprobs: dict[str, Any] | None) -> list[str]:
    return [one["token"] for one in (logprobs or {}).get("content") or []]


@pytest.mark.parametrize("form", FORMS)
def test_the_joined_stream_is_the_whole_answer(smollm: Cluster, form: str) -> None:
    path, body = FORMS[form]
    assert streamed(smollm, path, body) == whole(smollm, path, body)


@pytest.mark.parametrize("span", [(0, 1), (0, 4), (1, 5), (2, 12)], ids=str)
@pytest.mark.parametrize("form", ["chat", "completion"])
def test_a_stop_string_across_the_seam_ends_the_text_as_it_does_unjoined(
    smollm: Cluster, form: str, span: tuple[int, int]
) -> None:
    path, body = FORMS[form]
    (plain,) = whole(smollm, path, body)
    stopping = {**body, "stop": [plain["text"][slice(*span)]]}
    expected = whole(smollm, path, stopping)
    assert expected[0]["end"] == "stop"
    assert streamed(smollm, path, stopping) == expected


def test_both_times_to_the_first_token_are_measured(smollm: Cluster) -> None:
    streamed(smollm, *FORMS["chat"])
    rows = [row.split() for row in _metrics(smollm).splitlines()]
    counts = {
        name: float(value)
        for name, value in (row for row in rows if len(row) == 2)
        if name.startswith("pd_lb_first_token_seconds_count")
    }
    for leg in ("prefill", "decode"):
        assert counts[f'pd_lb_first_token_seconds_count{{leg="{leg}"}}'] >= 1
    assert get(f"{smollm.lb}/fleet")["local_prefill"] == "never"


def _metrics(cluster: Cluster) -> str:
    with urllib.request.urlopen(f"{cluster.lb}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text
