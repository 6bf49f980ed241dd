"""Answers in OpenAI's shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemons.front.answers import Answer
from daemons.front.model_card import ModelCard, load
from daemons.front.openai_answers import (
    CompletionLogprobs,
    Envelope,
    chat_logprobs,
    echoed,
    ending,
    is_worth_a_chunk,
    usage,
)
from daemons.front.output import End, Order, Piece
from daemons.protocol.generate import FinishReason, Sampling, TokenOut
from daemons.protocol.ids import RoomKey
from tests.support.tiny_model import tiny_model

A, B = TokenOut(97, -0.5, ((97, -0.5), (98, -1.0))), TokenOut(98, -1.5)


@pytest.fixture
def card(tmp_path: Path) -> ModelCard:
    return load(str(tiny_model(tmp_path / "model")))


def answer(*tokens: TokenOut) -> Answer:
    one = Answer(Order(RoomKey(7, 1), (1, 2, 3), Sampling(), "p0", "rid"))
    one.add(Piece("x", tokens, cached_tokens=2))
    return one


def test_a_prompt_counts_once_whatever_its_samples() -> None:
    counts = usage([answer(A), answer(A, B)], 2)
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (3, 3)
    assert counts["prompt_tokens_details"] == {"cached_tokens": 2}


def test_usage_counts_all_choices() -> None:
    assert usage([answer(A), answer(A, B)]) == {
        "prompt_tokens": 6,
        "completion_tokens": 3,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_whole_answers_and_chunks_share_their_head() -> None:
    envelope = Envelope("cmpl-1", "whole", "chunk", "tiny", created=5)
    head = {"id": "cmpl-1", "created": 5, "model": "tiny"}
    whole = envelope.whole([], {"total_tokens": 0})
    assert whole["object"] == "whole"
    assert whole["usage"]["total_tokens"] == 0
    assert envelope.chunk([], usage=None) == {
        **head,
        "object": "chunk",
        "choices": [],
        "usage": None,
    }


def test_an_end_has_openais_words() -> None:
    assert ending(None) == {"finish_reason": None}
    assert ending(End(FinishReason.STOP, "x")) == {"finish_reason": "stop", "matched_stop": "x"}
    assert ending(End(FinishReason.LENGTH))["finish_reason"] == "length"
    assert ending(End(FinishReason.STOP), with_calls=True)["finish_reason"] == "tool_calls"
    assert ending(End(FinishReason.LENGTH), with_calls=True)["finish_reason"] == "length"


def test_offsets_of_a_completion_go_on_from_piece_to_piece(card: ModelCard) -> None:
    logprobs = CompletionLogprobs(card, 2)
    assert logprobs.of([A]) == {
        "tokens": ["a"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"a": -0.5, "b": -1.0}],
        "text_offset": [0],
    }
    second = logprobs.of([B])
    assert second is not None
    assert second["text_offset"] == [1]


def test_the_chosen_token_is_among_the_likeliest_and_an_unknown_one_is_null(
    card: ModelCard,
) -> None:
    shown = CompletionLogprobs(card, 1).of([TokenOut(97), TokenOut(99, -9.0, ((97, -0.5),))])
    assert shown is not None
    assert shown["token_logprobs"] == [None, -9.0]
    assert shown["top_logprobs"] == [None, {"a": -0.5, "c": -9.0}]


def test_an_echo_has_prefills_log_probabilities_or_none() -> None:
    one = answer(A)
    assert echoed(one, ()) == [TokenOut(1), TokenOut(2), TokenOut(3)]
    assert echoed(one, (B,)) == [B]


def test_log_probabilities_that_nobody_asked_for_are_null(card: ModelCard) -> None:
    assert CompletionLogprobs(card, None).of([A]) is None
    none_of_others = CompletionLogprobs(card, 0).of([A])
    assert none_of_others is not None
    assert none_of_others["top_logprobs"] is None


def test_a_chats_log_probabilities_carry_bytes(card: ModelCard) -> None:
    half = TokenOut(0xC3, -0.1)
    shown = chat_logprobs(card, [A, half])["content"]
    assert shown[0]["token"] == "a"
    assert [top["token"] for top in shown[0]["top_logprobs"]] == ["a", "b"]
    assert shown[1]["bytes"] == [0xC3]


def test_a_piece_without_news_is_no_chunk() -> None:
    assert not is_worth_a_chunk(Piece("", (A,)), None)
    assert is_worth_a_chunk(Piece("", (A,)), 0)
    assert is_worth_a_chunk(Piece("a", (A,)), None)
    assert is_worth_a_chunk(Piece("", (), End(FinishReason.STOP)), None)
