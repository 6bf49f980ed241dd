"""Messages for templates."""

from __future__ import annotations

from typing import Any

import pytest

from daemons.front.messages import template_messages, with_system
from daemons.runtime.http import Refusal

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


def call(arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}} | more


def test_parts_of_a_message_are_joined_and_nulls_left_out() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    message = {"role": "user", "content": parts, "name": "n", "tool_calls": None}
    assert template_messages([message]) == [{"role": "user", "content": "a\nb", "name": "n"}]


def test_arguments_of_calls_become_objects_and_the_content_may_be_missing() -> None:
    (message,) = template_messages([{"role": "assistant", "tool_calls": [call('{"a": 1}')]}])
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    (plain,) = template_messages([{"role": "assistant", "content": "x", "tool_calls": []}])
    assert plain == {"role": "assistant", "content": "x"}


def test_a_developer_is_the_system_where_the_template_knows_none() -> None:
    said = [{"role": "developer", "content": "x"}]
    assert template_messages(said, "{{ messages }}")[0]["role"] == "system"
    assert template_messages(said, "developer")[0]["role"] == "developer"


def test_words_for_the_system_join_those_that_are_there() -> None:
    assert with_system(HI, "w") == [{"role": "system", "content": "w"}, *HI]
    both = with_system([{"role": "system", "content": "s"}, *HI], "w")
    assert both == [{"role": "system", "content": "s\n\nw"}, *HI]


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([], "messages"),
        ([{"content": "x"}], r"messages\[0\]\.role"),
        ([*HI, {"role": "user"}], r"messages\[1\]\.content"),
        ([{"role": "user", "content": None}], r"messages\[0\]\.content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"messages\[0\]\.content"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], r"messages\[0\]\.content"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content"),
        ([{"role": "assistant", "tool_calls": {"a": 1}}], r"messages\[0\]\.tool_calls"),
        ([{"role": "assistant", "tool_calls": [5]}], r"tool_calls\[0\]\.function"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], r"function\.name"),
        ([{"role": "assistant", "tool_calls": [call("{")]}], r"function\.arguments"),
    ],
)
def test_a_message_that_is_none_is_refused_with_its_place(messages: Any, place: str) -> None:
    with pytest.raises(Refusal, match=place):
        template_messages(messages)
