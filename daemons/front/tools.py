"""Tools of a chat request: which of them the model is told of, and what it must call.

Where the model has to call, a grammar makes it so: xgrammar's structural tag in the model's own
form, with each function's schema for its arguments. A tool that is ``strict`` has its arguments
held to its schema also where the model may choose.
Source: xgrammar's structural tags; a library for the forms was not found (``DESIGN.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from daemons.front.tool_calls import CLOSE, OPEN, ToolForm
from daemons.protocol.api.openai_bodies import ChatBody, Tool
from daemons.runtime.http import invalid

NAME_LIMIT = 64  # characters of a function's name; OpenAI's
TOOLS_LIMIT = 128  # OpenAI's

# For models whose template knows no tools; they are told in the form of Hermes.
TOLD = (
    "You may call functions. They are, one JSON object a line:\n{tools}\n"
    "To call one, answer with its name and its arguments in tags, and nothing else:\n"
    '<tool_call>\n{{"name": "...", "arguments": {{...}}}}\n</tool_call>'
)


@dataclass(frozen=True, slots=True)
class ToolWishes:
    """What a request says of tools; ``offered`` is empty when none may be called."""

    offered: tuple[Tool, ...] = ()
    forced: tuple[Tool, ...] = ()  # one of these must be called
    one_only: bool = False

    @property
    def names(self) -> frozenset[str]:
        """Names of the functions that may be called."""
        return frozenset(tool.function.name for tool in self.offered)

    def for_template(self) -> list[dict[str, Any]] | None:
        """Return the tools as templates take them."""
        return [_plain(tool) for tool in self.offered] or None

    def told(self) -> str:
        """Return the words for a model whose template knows no tools."""
        lines = [msgspec.json.encode(_plain(tool)["function"]).decode() for tool in self.offered]
        return TOLD.format(tools="\n".join(lines))

    def structural_tag(self, form: ToolForm) -> dict[str, Any] | None:
        """Return the grammar that the text must keep to; None where anything may be said."""
        if self.forced:
            tags = [_tag(tool, form) for tool in self.forced]
            separator = "\n" if form is ToolForm.HERMES else "; "
            calls = {
                "type": "tags_with_separator",
                "tags": tags,
                "separator": separator,
                "at_least_one": True,
                "stop_after_first": self.one_only,
            }
            return {"type": "structural_tag", "format": calls}
        if form is ToolForm.LLAMA3 or not any(tool.function.strict for tool in self.offered):
            return None
        tags = [_tag(tool, form) for tool in self.offered]
        calls = {"type": "triggered_tags", "triggers": [OPEN], "tags": tags}
        return {"type": "structural_tag", "format": calls}


def tool_wishes(body: ChatBody) -> ToolWishes:
    """Return what a request says of tools.

    Raises:
        Refusal: a tool is no function, names are wrong or double, the choice names none of them.
    """
    tools = tuple(body.tools or ())
    _check(tools)
    choice = body.tool_choice
    named = _named(choice) if isinstance(choice, dict) else None
    if choice not in (None, "none", "auto", "required") and named is None:
        raise invalid("tool_choice: none, auto, required, or a function's name in an object")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice: there are no tools to choose from")
        return ToolWishes()
    if choice == "none":
        return ToolWishes()
    one_only = body.parallel_tool_calls is False
    if choice == "required":
        return ToolWishes(tools, tools, one_only)
    if named is None:
        return ToolWishes(tools, (), one_only)
    forced = tuple(tool for tool in tools if tool.function.name == named)
    if not forced:
        raise invalid(f"tool_choice: {named[:NAME_LIMIT]!r} is none of the tools")
    return ToolWishes(tools, forced, one_only=True)


def _check(tools: Sequence[Tool]) -> None:
    if len(tools) > TOOLS_LIMIT:
        raise invalid(f"tools: {len(tools)}, the limit is {TOOLS_LIMIT}")
    for n, tool in enumerate(tools):
        name = tool.function.name
        if tool.type != "function":
            raise invalid(f"tools[{n}].type: only function is supported")
        if not 0 < len(name) <= NAME_LIMIT or not _is_word(name):
            raise invalid(
                f"tools[{n}].function.name: 1 to {NAME_LIMIT} of letters, digits, _, - and ."
            )
    if len({tool.function.name for tool in tools}) < len(tools):
        raise invalid("tools: two functions have the same name")


def _is_word(name: str) -> bool:
    return name.isascii() and all(c.isalnum() or c in "_-." for c in name)


def _named(choice: dict[str, Any]) -> str | None:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if choice.get("type") == "function" and isinstance(name, str) else None


def _plain(tool: Tool) -> dict[str, Any]:
    function = {
        name: value
        for name, value in msgspec.structs.asdict(tool.function).items()
        if value is not None
    }
    return {"type": "function", "function": function}


def _tag(tool: Tool, form: ToolForm) -> dict[str, Any]:
    schema = tool.function.parameters or {"type": "object"}
    name, arguments = tool.function.name, "arguments" if form is ToolForm.HERMES else "parameters"
    begin, end = f'{{"name": "{name}", "{arguments}": ', "}"
    if form is ToolForm.HERMES:
        begin, end = f"{OPEN}\n{begin}", f"{end}\n{CLOSE}"
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": begin, "content": content, "end": end}
