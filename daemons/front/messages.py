"""A chat's messages in the form that chat templates read.

Contents become texts, arguments of tool calls become objects, and roles that a template does not
know become those that it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from daemons.runtime.http import invalid

SYSTEM, DEVELOPER = "system", "developer"


def template_messages(
    messages: Sequence[Mapping[str, Any]], template: str = DEVELOPER
) -> list[dict[str, Any]]:
    """Return messages for a template.

    Args:
        template: its source; where it does not know developers, they speak as the system.

    Raises:
        Refusal: 400, with the place of what is no message.
    """
    if not messages:
        raise invalid("messages: an empty list")
    plain = [_plain(n, message) for n, message in enumerate(messages)]
    if DEVELOPER not in template:
        for message in plain:
            message["role"] = SYSTEM if message["role"] == DEVELOPER else message["role"]
    return plain


def with_system(messages: list[dict[str, Any]], words: str) -> list[dict[str, Any]]:
    """Return the messages with more words for the system."""
    if messages and messages[0]["role"] == SYSTEM:
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{words}"}
        return [first, *messages[1:]]
    return [{"role": SYSTEM, "content": words}, *messages]


def _plain(n: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise invalid(f"messages[{n}].role: a word is needed")
    plain = {name: value for name, value in message.items() if value is not None}
    calls = plain.get("tool_calls")
    if calls:
        plain["tool_calls"] = _calls(n, calls)
    elif calls is not None:
        del plain["tool_calls"]  # templates ask whether the field is there
    content = plain.get("content")
    if content is None and (calls or plain.get("reasoning_content")):
        content = ""
    if isinstance(content, list):
        content = "\n".join(_text_of(n, part) for part in content)
    if not isinstance(content, str):
        raise invalid(f"messages[{n}].content: a text, or a list of text parts, is needed")
    return {**plain, "content": content}


def _text_of(n: int, part: object) -> str:
    if isinstance(part, dict):
        kind = part.get("type")
        text = part.get(kind) if kind in ("text", "refusal") else None
        if isinstance(text, str):
            return text
    raise invalid(f"messages[{n}].content: only parts of type text are supported")


def _calls(n: int, calls: object) -> list[dict[str, Any]]:
    place = f"messages[{n}].tool_calls"
    if not isinstance(calls, list):
        raise invalid(f"{place}: a list is needed")
    return [_call(f"{place}[{k}]", call) for k, call in enumerate(calls)]


def _call(place: str, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise invalid(f"{place}.function: an object is needed")
    if not isinstance(function.get("name"), str):
        raise invalid(f"{place}.function.name: a word is needed")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid(f"{place}.function.arguments: {error}") from error
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}
