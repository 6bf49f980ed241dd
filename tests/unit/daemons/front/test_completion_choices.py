"""Choices of a completion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daemons.front.answers import Answer
from daemons.front.completion_choices import CompletionChoices
from daemons.front.model_card import ModelCard, load
from daemons.front.openai_answers import Asked, Envelope
from daemons.front.output import End, Order, Piece
from daemons.protocol.api.openai_bodies import SharedBody, StreamOptions
from daemons.protocol.generate import FinishReason, Sampling, TokenOut
from daemons.protocol.ids import RoomKey
from tests.support.tiny_model import tiny_model

A, B = TokenOut(97, -0.5), TokenOut(98, -1.5)
LENGTH = End(FinishReason.LENGTH)


@pytest.fixture
def card(tmp_path: Path) -> ModelCard:
    return load(str(tiny_model(tmp_path / "model")))


def choices(
    card: ModelCard, echo: str | None = None, logprobs: int | None = None, **options: bool
) -> CompletionChoices:
    answer = Answer(Order(RoomKey(7, 1), tuple(b"hi"), Sampling(), "p0", "rid"))
    envelope = Envelope("cmpl-1", "whole", "chunk", "tiny", created=5)
    shared = SharedBody(stream_options=StreamOptions(**options))
    asked = Asked(shared, envelope, None, [answer])  # type: ignore[arg-type]
    return CompletionChoices(card, asked, [echo], logprobs)


def said(events: list[Any]) -> list[dict[str, Any]]:
    return [event["choices"][0] for event in events]


def test_the_first_event_comes_with_the_first_token_whatever_it_settles(card: ModelCard) -> None:
    one = choices(card)
    assert one.events(0, Piece("", ())) == []
    assert [choice["text"] for choice in said(one.events(0, Piece("", (A,))))] == [""]
    assert one.events(0, Piece("", (A,))) == []
    assert [choice["text"] for choice in said(one.events(0, Piece("ab", (B,))))] == ["ab"]


def test_an_echo_is_in_the_first_event_with_the_prompts_tokens(card: ModelCard) -> None:
    one = choices(card, "hi", 0)
    (first,) = said(one.events(0, Piece("a", (A,), prompt_logprobs=(TokenOut(104), A))))
    assert first["text"] == "hia"
    assert first["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    (second,) = said(one.events(0, Piece("b", (B,), LENGTH)))
    assert second["text"] == "b"
    assert second["logprobs"]["text_offset"] == [3]


def test_decode_shows_nulls_for_the_prompt(card: ModelCard) -> None:
    one = choices(card, "hi", 0)
    (first,) = said(one.events(0, Piece("a", (A,))))
    assert first["logprobs"]["tokens"] == ["h", "i", "a"]
    assert first["logprobs"]["token_logprobs"] == [None, None, -0.5]


def test_a_stream_adds_up_to_the_whole(card: ModelCard) -> None:
    pieces = [Piece("a", (A,), prompt_logprobs=(TokenOut(104), A)), Piece("b", (B,), LENGTH)]
    streamed = choices(card, "hi", 1)
    parts = [choice for piece in pieces for choice in said(streamed.events(0, piece))]
    whole = choices(card, "hi", 1)
    for piece in pieces:
        whole._asked.answers[0].add(piece)
    answer = whole.whole()
    (choice,) = answer["choices"]
    assert choice["text"] == "".join(part["text"] for part in parts)
    for name, values in choice["logprobs"].items():
        assert values == [value for part in parts for value in part["logprobs"][name]]
    assert answer["usage"]["total_tokens"] == 4


def test_chunks_may_count_the_tokens(card: ModelCard) -> None:
    counting = choices(card, include_usage=True, continuous_usage_stats=True)
    (event,) = counting.events(0, Piece("a", (A,)))
    assert event["usage"]["completion_tokens"] == 1  # type: ignore[index]
    (event,) = choices(card, include_usage=True).events(0, Piece("a", (A,)))
    assert event["usage"] is None  # type: ignore[index]
    (event,) = choices(card).events(0, Piece("a", (A,)))
    assert "usage" not in event  # type: ignore[operator]
