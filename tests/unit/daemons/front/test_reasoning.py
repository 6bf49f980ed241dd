"""Thoughts told apart from an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.front.reasoning import Place, ThinkSplit, split_for

WORDS = st.lists(st.sampled_from(["<think>", "</think>", "<th", "a", " ", "\n", "b<"]), max_size=9)


def split(split: ThinkSplit, *parts: str) -> tuple[str, str]:
    said = [split.feed(part) for part in parts] + [split.finish()]
    return "".join(thought for thought, _ in said), "".join(answer for _, answer in said)


@pytest.mark.parametrize(
    ("text", "thoughts", "answer"),
    [
        ("<think>\n a b \n</think>\n\nhi ", "a b", "hi "),
        (" <think>x</think>y", "x", "y"),
        (" no thoughts", "", " no thoughts"),
        ("<think>never closed \n", "never closed", ""),
        ("<think></think>\n", "", ""),
        ("<thi", "", "<thi"),
        ("a<think>b</think>", "", "a<think>b</think>"),
        ("", "", ""),
    ],
)
def test_thoughts_stand_before_the_answer_in_tags(text: str, thoughts: str, answer: str) -> None:
    assert split(ThinkSplit(), text) == (thoughts, answer)


@given(WORDS, st.booleans(), st.sampled_from([Place.BEFORE, Place.INSIDE]))
def test_a_stream_adds_up_to_the_whole(parts: list[str], in_pieces: bool, place: Place) -> None:  # noqa: FBT001
    whole = split(ThinkSplit(place, in_pieces), "".join(parts))
    assert split(ThinkSplit(place, in_pieces), *parts) == whole
    assert split(ThinkSplit(place, in_pieces), *"".join(parts)) == whole


def test_thoughts_may_come_as_one() -> None:
    split = ThinkSplit(in_pieces=False)
    assert split.feed("<think>a b") == ("", "")
    assert split.feed(" c</think>d") == ("a b c", "d")


def test_a_template_may_open_the_thoughts_itself() -> None:
    assert split_for("<|assistant|><think>\n", in_pieces=True).place is Place.INSIDE
    closed = split_for("<|assistant|><think>\n\n</think>\n\n", in_pieces=True)
    assert split(closed, "hi") == ("", "hi")
