"""Answers in SGLang's shape."""

from __future__ import annotations

from typing import Any

from daemons.front.answers import Answer, finish_reason
from daemons.front.output import End, Order, Piece
from daemons.protocol.generate import FinishReason, Sampling, TokenOut
from daemons.protocol.ids import RoomKey


def answer(**sampling: Any) -> Answer:
    return Answer(Order(RoomKey(7, 1), (1, 2), Sampling(**sampling), "p0", "rid"), "<{}>".format)


def test_an_answer_without_log_probabilities() -> None:
    one = answer()
    one.add(Piece("a", (TokenOut(97),), cached_tokens=1))
    one.add(Piece("b", (TokenOut(98),), End(FinishReason.LENGTH)))
    assert one.body(0.5) == {
        "text": "ab",
        "output_ids": [97, 98],
        "meta_info": {
            "id": "rid",
            "finish_reason": {"type": "length", "length": 2},
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "cached_tokens": 1,
            "e2e_latency": 0.5,
            "bootstrap_room": 7,
        },
    }


def test_log_probabilities_are_triples() -> None:
    one = answer(logprobs=1, prompt_logprobs=1)
    prompt = (TokenOut(1), TokenOut(2, -2.0, ((2, -2.0),)))
    one.add(Piece("a", (TokenOut(97, -1.0, ((98, -0.5),)),), None, 0, prompt))
    meta = one.body(0.0)["meta_info"]
    assert meta["finish_reason"] is None
    assert meta["input_token_logprobs"] == [[None, 1, "<1>"], [-2.0, 2, "<2>"]]
    assert meta["input_top_logprobs"] == [None, [[-2.0, 2, "<2>"]]]
    assert meta["output_token_logprobs"] == [[-1.0, 97, "<97>"]]
    assert meta["output_top_logprobs"] == [[[-0.5, 98, "<98>"]]]


def test_without_top_log_probabilities_there_are_no_fields_for_them() -> None:
    one = answer(logprobs=0)
    one.token_text = None
    one.add(Piece("a", (TokenOut(97, -1.0),)))
    meta = one.body(0.0)["meta_info"]
    assert meta["output_token_logprobs"] == [[-1.0, 97, None]]
    assert meta["input_token_logprobs"] == []
    assert "output_top_logprobs" not in meta


def test_a_text_ends_by_its_length_by_a_token_or_by_a_string() -> None:
    assert finish_reason(None, 3) is None
    assert finish_reason(End(FinishReason.LENGTH), 3) == {"type": "length", "length": 3}
    assert finish_reason(End(FinishReason.STOP, 2), 3) == {"type": "stop", "matched": 2}
    assert finish_reason(End(FinishReason.STOP, "x"), 3) == {"type": "stop", "matched": "x"}
