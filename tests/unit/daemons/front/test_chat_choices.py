"""Choices of a chat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daemons.front.answers import Answer
from daemons.front.chat_choices import ChatChoices
from daemons.front.chat_text import ChatText
from daemons.front.model_card import ModelCard, load
from daemons.front.openai_answers import Asked, Envelope
from daemons.front.output import End, Order, Piece
from daemons.front.tool_calls import ToolForm, ToolText
from daemons.protocol.api.openai_bodies import SharedBody
from daemons.protocol.generate import FinishReason, Sampling, TokenOut
from daemons.protocol.ids import RoomKey
from tests.support.tiny_model import tiny_model

A, B = TokenOut(97, -0.5), TokenOut(98, -1.5)
STOP = End(FinishReason.STOP)
KEY = RoomKey(7, 1)


@pytest.fixture
def card(tmp_path: Path) -> ModelCard:
    return load(str(tiny_model(tmp_path / "model")))


def choices(card: ModelCard, logprobs: int | None = None) -> ChatChoices:
    answer = Answer(Order(KEY, tuple(b"hi"), Sampling(), "p0", "rid"))
    asked = Asked(SharedBody(), Envelope("x", "whole", "chunk", "t", created=5), None, [answer])  # type: ignore[arg-type]
    text = ChatText(KEY, None, ToolText(ToolForm.HERMES, {"f"}))
    return ChatChoices(card, asked, [text], logprobs)


def said(events: list[Any]) -> list[dict[str, Any]]:
    return [event["choices"][0] for event in events]


def test_the_first_event_has_the_role_and_comes_with_the_first_token(card: ModelCard) -> None:
    one = choices(card)
    assert one.events(0, Piece("", ())) == []
    (first,) = said(one.events(0, Piece("", (A,))))
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert one.events(0, Piece("", (A,))) == []
    (second,) = said(one.events(0, Piece("ab", (B,))))
    assert second["delta"] == {"content": "ab"}
    (only,) = said(choices(card).events(0, Piece("a", (A,), STOP)))
    assert (only["delta"]["role"], only["delta"]["content"]) == ("assistant", "a")
    assert only["finish_reason"] == "stop"


def test_log_probabilities_come_with_their_tokens_although_text_is_held_back(
    card: ModelCard,
) -> None:
    one = choices(card, 0)
    shown = [said(one.events(0, Piece("", (token,)))) for token in (A, B)]
    assert [choice["logprobs"]["content"][0]["token"] for (choice,) in shown] == ["a", "b"]


def test_a_stream_adds_up_to_the_whole_and_ends_for_its_calls(card: ModelCard) -> None:
    text = 'ok <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    pieces = [Piece(c, (A,)) for c in text] + [Piece("", (B,), STOP)]
    streamed, whole = choices(card, 0), choices(card, 0)
    parts = [choice for piece in pieces for choice in said(streamed.events(0, piece))]
    for piece in pieces:
        whole.take(0, piece)
    (choice,) = whole.whole()["choices"]
    content = "".join(part["delta"].get("content") or "" for part in parts)
    assert choice["message"]["content"] == content == "ok"
    calls = [call for part in parts for call in part["delta"].get("tool_calls", ())]
    told = "".join(call["function"]["arguments"] for call in calls)
    (call,) = choice["message"]["tool_calls"]
    assert told == call["function"]["arguments"] == '{"a": 1}'
    assert calls[0]["id"] == call["id"]
    assert parts[-1]["finish_reason"] == choice["finish_reason"] == "tool_calls"
    assert len(choice["logprobs"]["content"]) == len(pieces)
