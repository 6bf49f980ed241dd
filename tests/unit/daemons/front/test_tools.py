"""Tools of a request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from daemons.front.tool_calls import ToolForm
from daemons.front.tools import ToolWishes, tool_wishes
from daemons.protocol.api.openai_bodies import ChatBody
from daemons.runtime.http import Refusal

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def tool(name: str = "weather", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}}


def wishes(*tools: dict[str, Any], **fields: Any) -> ToolWishes:
    body = {"messages": [], "tools": list(tools), **fields}
    return tool_wishes(msgspec.convert(body, ChatBody))


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_a_choice_offers_or_forces() -> None:
    tools = (tool(), tool("time"))
    assert wishes(*tools).names == {"weather", "time"}
    assert wishes(*tools).forced == ()
    assert wishes(*tools, tool_choice="none") == ToolWishes()
    assert len(wishes(*tools, tool_choice="required").forced) == 2
    one = wishes(*tools, tool_choice=named("time"))
    assert [tool.function.name for tool in one.forced] == ["time"]
    assert one.one_only
    assert wishes() == ToolWishes()


@pytest.mark.parametrize(
    ("tools", "choice", "text"),
    [
        ((), "required", "no tools"),
        ((), named("x"), "no tools"),
        ((tool(),), "any", "tool_choice"),
        ((tool(),), {"type": "function"}, "tool_choice"),
        ((tool(),), named("time"), "none of the tools"),
        ((tool(), tool()), None, "same name"),
        ((tool("a b"),), None, r"tools\[0\]\.function\.name"),
        ((tool("x" * 65),), None, r"tools\[0\]\.function\.name"),
        (({**tool(), "type": "custom"},), None, "only function"),
        (tuple(tool(f"f{n}") for n in range(129)), None, "the limit is 128"),
    ],
)
def test_what_is_wrong_with_tools_is_told(tools: Any, choice: Any, text: str) -> None:
    with pytest.raises(Refusal, match=text):
        wishes(*tools, tool_choice=choice)


def test_calls_that_must_be_are_a_grammar() -> None:
    tag = wishes(tool(), tool_choice="required").structural_tag(ToolForm.HERMES)
    assert tag is not None
    form = tag["format"]
    assert (form["at_least_one"], form["stop_after_first"]) == (True, False)
    assert form["tags"] == [
        {
            "type": "tag",
            "begin": '<tool_call>\n{"name": "weather", "arguments": ',
            "content": {"type": "json_schema", "json_schema": SCHEMA},
            "end": "}\n</tool_call>",
        }
    ]
    llama = wishes(tool(), tool_choice=named("weather")).structural_tag(ToolForm.LLAMA3)
    assert llama is not None
    assert llama["format"]["tags"][0]["begin"] == '{"name": "weather", "parameters": '
    assert llama["format"]["stop_after_first"]


def test_calls_that_may_be_are_a_grammar_only_where_a_tool_is_strict() -> None:
    assert wishes(tool()).structural_tag(ToolForm.HERMES) is None
    strict = wishes(tool(strict=True)).structural_tag(ToolForm.HERMES)
    assert strict is not None
    assert strict["format"]["triggers"] == ["<tool_call>"]


def test_templates_and_models_without_one_are_told_of_tools() -> None:
    one = wishes(tool(description="says it"))
    assert one.for_template() == [tool(description="says it")]
    assert '"description":"says it"' in one.told()
    assert wishes().for_template() is None
