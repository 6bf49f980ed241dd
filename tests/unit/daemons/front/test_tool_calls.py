"""Tool calls in a text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.front.tool_calls import ToolForm, ToolText

HERMES, LLAMA3 = ToolForm.HERMES, ToolForm.LLAMA3
Found = tuple[str, dict[int, tuple[str | None, str]]]

HERMES_CASES: list[tuple[str, str, dict[int, Any]]] = [
    (
        'Sure.\n<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\n',
        "Sure.",
        {0: ("f", '{"a": "}"}'), 1: ("g", "{}")},
    ),
    (
        'hi <tool_call>[{"name": "f", "arguments": {"x":1}}, {"name":"g"}]</tool_call>',
        "hi",
        {0: ("f", '{"x":1}'), 1: ("g", "{}")},
    ),
    ("a < b <tool", "a < b <tool", {}),
    ("<tool_call>nonsense</tool_call> x", "<tool_call>nonsense</tool_call> x", {}),
    ('<tool_call>{"name": "z"}</tool_call>', '<tool_call>{"name": "z"}</tool_call>', {}),
    ('<tool_call>{"arguments": {"q": 2}, "name": "f"}</tool_call>', "", {0: ("f", '{"q": 2}')}),
    ('<tool_call>{"name": "f", "arguments": {"q', "", {0: ("f", '{"q')}),
    ('<tool_call>{"na', '<tool_call>{"na', {}),
    ('{"name": "f"}', '{"name": "f"}', {}),
]
LLAMA3_CASES: list[tuple[str, str, dict[int, Any]]] = [
    (
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        "",
        {0: ("f", '{"a": 1}'), 1: ("g", "{}")},
    ),
    ('<|python_tag|>{"name": "f", "parameters": {}}', "", {0: ("f", "{}")}),
    ('{"answer": 5}', '{"answer": 5}', {}),
    ('hello {"name": "f"}', 'hello {"name": "f"}', {}),
    ('  {"name"', '  {"name"', {}),
    ("<|py", "<|py", {}),
]
CASES = [(HERMES, *case) for case in HERMES_CASES] + [(LLAMA3, *case) for case in LLAMA3_CASES]


def found(text: ToolText, *parts: str) -> Found:
    content, calls = "", {}
    for told, pieces in [*(text.feed(part) for part in parts), text.finish()]:
        content += told
        for piece in pieces:
            name, arguments = calls.get(piece.index, (None, ""))
            calls[piece.index] = (piece.name or name, arguments + piece.arguments)
    return content, calls


@pytest.mark.parametrize(("form", "text", "content", "calls"), CASES)
def test_calls_and_content_are_told_apart(
    form: ToolForm, text: str, content: str, calls: dict[int, Any]
) -> None:
    assert found(ToolText(form, {"f", "g"}), text) == (content, calls)


@given(st.sampled_from(CASES), st.lists(st.integers(0, 200), max_size=6))
def test_a_stream_adds_up_to_the_whole(case: tuple[Any, ...], cuts: list[int]) -> None:
    form, text, content, calls = case
    at = sorted(cut for cut in cuts if cut < len(text))
    parts = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
    assert found(ToolText(form, {"f", "g"}), *parts) == (content, calls)
    assert found(ToolText(form, {"f", "g"}), *text) == (content, calls)


def test_arguments_are_told_while_they_are_written() -> None:
    text = ToolText(HERMES, {"f"})
    text.feed('<tool_call>{"name": "f", "arguments": ')
    assert [piece.arguments for piece in text.feed('{"a": ')[1]] == ['{"a": ']
    assert [piece.arguments for piece in text.feed("12")[1]] == ["12"]


def test_where_one_call_is_wanted_later_ones_are_dropped() -> None:
    _, calls = found(ToolText(HERMES, {"f", "g"}, one_only=True), HERMES_CASES[0][0])
    assert list(calls) == [0]
