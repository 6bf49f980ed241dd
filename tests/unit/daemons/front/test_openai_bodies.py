"""OpenAI's bodies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from daemons.front.openai_bodies import (
    chat_logprobs_of,
    check_chat,
    check_completion,
    check_shared,
    completion_logprobs,
    prompts_of,
    usage_in_chunks,
    usage_in_stream,
    wishes_of,
)
from daemons.front.sampling import LogprobWishes
from daemons.protocol.api.openai_bodies import ChatBody, CompletionBody, SharedBody
from daemons.protocol.api.sampling_params import Wishes
from daemons.runtime.http import Refusal

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object"}


def chat(**fields: Any) -> ChatBody:
    return msgspec.convert({"messages": HI, **fields}, ChatBody)


def completion(prompt: object, **fields: Any) -> CompletionBody:
    return msgspec.convert({"prompt": prompt, **fields}, CompletionBody)


def shared(**fields: Any) -> SharedBody:
    return msgspec.convert(fields, SharedBody)


def test_shared_fields_become_wishes() -> None:
    body = shared(temperature=0, top_p=0.5, stop="x", seed=1, n=1, min_tokens=2, regex="a")
    assert wishes_of(body, 9) == Wishes(
        max_new_tokens=9,
        min_new_tokens=2,
        temperature=0.0,
        top_p=0.5,
        stop="x",
        seed=1,
        n=1,
        regex="a",
    )


@pytest.mark.parametrize(
    ("form", "wishes"),
    [
        (None, Wishes()),
        ({"type": "text"}, Wishes()),
        ({"type": "json_object"}, Wishes(json_object=True)),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
            Wishes(json_schema=SCHEMA),
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": True}},
            Wishes(json_schema="true"),
        ),
        (
            {"type": "structural_tag", "format": {}},
            Wishes(structural_tag={"type": "structural_tag", "format": {}}),
        ),
    ],
)
def test_a_response_format_becomes_a_grammar(form: Any, wishes: Wishes) -> None:
    assert wishes_of(shared(response_format=form), None) == wishes


@pytest.mark.parametrize("form", [{"type": "xml"}, {"type": "json_schema"}, {"type": ["a"]}])
def test_a_response_format_that_is_none_is_refused(form: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=r"response_format\."):
        wishes_of(shared(response_format=form), None)


def test_a_text_that_must_be_a_call_has_no_other_grammar() -> None:
    assert wishes_of(shared(), None, {"a": 1}).structural_tag == {"a": 1}
    for other in ({"regex": "a"}, {"response_format": {"type": "json_object"}}):
        with pytest.raises(Refusal, match="no other grammar"):
            wishes_of(shared(**other), None, {"a": 1})


def test_null_is_absent() -> None:
    names = list(SharedBody.__struct_fields__)
    assert msgspec.convert(dict.fromkeys(names), SharedBody) == SharedBody()


def test_usage_may_come_at_the_end_or_with_every_chunk() -> None:
    def asked(**options: bool) -> tuple[bool, bool]:
        body = shared(stream_options=options)
        return usage_in_stream(body), usage_in_chunks(body)

    assert asked() == (False, False)
    assert asked(include_usage=True) == (True, False)
    assert asked(include_usage=True, continuous_usage_stats=True) == (True, True)
    assert asked(continuous_usage_stats=True) == (False, False)


@pytest.mark.parametrize(
    "wrong", [{"temperature": "hot"}, {"stream": 1}, {"stop": [1]}, {"seed": 1.5}, {"n": "1"}]
)
def test_wrong_types_are_refused_with_their_place(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(wrong))):
        msgspec.convert(wrong, SharedBody)


def test_a_prompt_is_a_text_tokens_or_a_list_of_either() -> None:
    assert prompts_of(completion("hi")) == ["hi"]
    assert prompts_of(completion([1, 2])) == [[1, 2]]
    assert prompts_of(completion(["a", "b"])) == ["a", "b"]
    assert prompts_of(completion([[1], [2]])) == [[1], [2]]


@pytest.mark.parametrize("wrong", [[], [1, "a"], [1, [2]]])
def test_an_empty_or_mixed_prompt_is_refused(wrong: object) -> None:
    with pytest.raises(Refusal, match="prompt"):
        prompts_of(completion(wrong))


@pytest.mark.parametrize(
    ("wrong", "more"), [({"suffix": "x"}, {}), ({"best_of": 2}, {}), ({}, {"max_tokens": 0})]
)
def test_a_completion_refuses_what_is_not_here(wrong: dict[str, Any], more: Any) -> None:
    with pytest.raises(Refusal, match=next(iter({**wrong, **more}))):
        check_completion(completion("hi", **wrong), shared(**more))


def test_a_completion_takes_the_best_of_all_and_an_echo_alone() -> None:
    check_completion(completion("hi", best_of=3), shared(n=3))
    check_completion(completion("hi", echo=True), shared(max_tokens=0))


@pytest.mark.parametrize("name", ["stop_regex", "lora_path", "return_hidden_states"])
def test_what_routers_send_empty_is_refused_only_when_it_asks(name: str) -> None:
    check_shared(shared(**{name: False}))
    with pytest.raises(Refusal, match=f"{name}: not supported"):
        check_shared(shared(**{name: "x"}))


@pytest.mark.parametrize(
    "wrong",
    [
        {"functions": [{}]},
        {"modalities": ["audio"]},
        {"audio": {"voice": "x"}},
        {"chat_template": "x"},
        {"store": True},
        {"service_tier": "flex"},
        {"verbosity": "high"},
        {"continue_final_message": True, "add_generation_prompt": True},
    ],
)
def test_a_chat_refuses_what_is_not_here(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=next(iter(wrong))):
        check_chat(chat(**wrong))


def test_a_chat_takes_what_changes_nothing() -> None:
    check_chat(chat(tools=[], modalities=["text"], store=False, service_tier="auto", audio=None))


def test_log_probabilities_are_asked_for_in_two_ways() -> None:
    assert completion_logprobs(completion("x", logprobs=2)) == LogprobWishes(2)
    assert completion_logprobs(completion("x", logprobs=2, echo=True)) == LogprobWishes(2, 2)
    assert completion_logprobs(completion("x", echo=True)) == LogprobWishes()
    assert chat_logprobs_of(chat(logprobs=True, top_logprobs=3)) == LogprobWishes(3)
    assert chat_logprobs_of(chat(logprobs=True)) == LogprobWishes(0)
    assert chat_logprobs_of(chat(logprobs=False)) == LogprobWishes()
    with pytest.raises(Refusal, match="top_logprobs: needs"):
        check_chat(chat(top_logprobs=3))
