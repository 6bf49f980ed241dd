"""OpenAI's bodies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from daemons.front.openai_bodies import ChatBody, CompletionBody, SharedBody
from daemons.front.sampling import LogprobWishes, Wishes
from daemons.runtime.http import Refusal

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatBody:
    return msgspec.convert({"messages": HI, **fields}, ChatBody)


def completion(prompt: object, **fields: Any) -> CompletionBody:
    return msgspec.convert({"prompt": prompt, **fields}, CompletionBody)


def test_shared_fields_become_wishes() -> None:
    body = msgspec.convert(
        {"temperature": 0, "top_p": 0.5, "stop": "x", "seed": 1, "n": 1, "min_tokens": 2},
        SharedBody,
    )
    assert body.wishes(9) == Wishes(
        max_new_tokens=9, min_new_tokens=2, temperature=0.0, top_p=0.5, stop="x", seed=1, n=1
    )


def test_unknown_fields_are_let_be_and_null_is_absent() -> None:
    names = list(SharedBody.__struct_fields__)
    assert msgspec.convert({**dict.fromkeys(names), "user": "u", "store": True}, SharedBody)


@pytest.mark.parametrize(
    "wrong", [{"temperature": "hot"}, {"stream": 1}, {"stop": [1]}, {"seed": 1.5}, {"n": "1"}]
)
def test_wrong_types_are_refused_with_their_place(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(wrong))):
        msgspec.convert(wrong, SharedBody)


def test_a_prompt_is_a_text_tokens_or_a_list_of_either() -> None:
    assert completion("hi").prompts() == (["hi"], False)
    assert completion([1, 2]).prompts() == ([[1, 2]], False)
    assert completion(["a", "b"]).prompts() == (["a", "b"], True)
    assert completion([[1], [2]]).prompts() == ([[1], [2]], True)


@pytest.mark.parametrize("wrong", [[], [1, "a"], [1, [2]]])
def test_an_empty_or_mixed_prompt_is_refused(wrong: object) -> None:
    with pytest.raises(Refusal, match="prompt"):
        completion(wrong).prompts()


@pytest.mark.parametrize("wrong", [{"suffix": "x"}, {"best_of": 2}, {"echo": True, "logprobs": 1}])
def test_a_completion_refuses_what_is_not_here_yet(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="not supported yet"):
        completion("hi", **wrong).check()


@pytest.mark.parametrize(
    "wrong",
    [
        {"tools": [{"type": "function"}]},
        {"functions": [{}]},
        {"response_format": {"type": "json_object"}},
        {"modalities": ["audio"]},
        {"audio": {"voice": "x"}},
        {"continue_final_message": True},
        {"chat_template": "x"},
    ],
)
def test_a_chat_refuses_what_is_not_here_yet(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="yet"):
        chat(**wrong).check()


def test_a_chat_takes_what_changes_nothing() -> None:
    chat(tools=[], response_format={"type": "text"}, modalities=["text"]).check()


def test_log_probabilities_are_asked_for_in_two_ways() -> None:
    assert completion("x", logprobs=2).logprob_wishes() == LogprobWishes(2)
    assert completion("x").logprob_wishes() == LogprobWishes()
    assert chat(logprobs=True, top_logprobs=3).logprob_wishes() == LogprobWishes(3)
    assert chat(logprobs=True).logprob_wishes() == LogprobWishes(0)
    assert chat(logprobs=False).logprob_wishes() == LogprobWishes()
    with pytest.raises(Refusal, match="top_logprobs needs"):
        chat(top_logprobs=3).check()


def test_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat(messages=[{"role": "user", "content": parts, "name": "n"}])
    assert body.plain_messages() == [{"role": "user", "content": "a\nb", "name": "n"}]


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([], "messages"),
        ([{"content": "x"}], r"messages\[0\]\.role"),
        ([*HI, {"role": "user"}], r"messages\[1\]\.content"),
        ([{"role": "user", "content": None}], r"messages\[0\]\.content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"messages\[0\]\.content"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content"),
    ],
)
def test_a_message_that_is_none_is_refused_with_its_place(messages: Any, place: str) -> None:
    with pytest.raises(Refusal, match=place):
        chat(messages=messages).plain_messages()
