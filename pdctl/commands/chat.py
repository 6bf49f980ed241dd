"""``pdctl chat``: a prompt in, tokens out as they come, through pd-lb like any client."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl import options
from pdctl.errors import CommandError, Exit
from pdctl.render import say

if TYPE_CHECKING:
    from pdctl.places import Place

IDLE_S = 120.0  # between two events of the answer
ROOM_HEADER = "x-pd-room"

Messages = list[dict[str, str]]


def chat(
    prompt: Annotated[
        str | None,
        typer.Argument(help="What to ask; without it a conversation, or standard input."),
    ] = None,
    config: options.Config = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.", min=1)] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 0.7,
    system: Annotated[
        str | None, typer.Option(help="A system message before the conversation.")
    ] = None,
    room: Annotated[
        bool, typer.Option("--room", help="Print the room at the end, on standard error.")
    ] = False,
) -> int:
    """Ask the model something, or talk with it.

    Example: pdctl chat 'What is a page?' --max-tokens 64
    """
    from pdctl import target
    from pdctl.survey import located

    place = located(target.find(config).cluster)["lb"]
    messages: Messages = [{"role": "system", "content": system}] if system else []
    wishes = {"max_tokens": max_tokens, "temperature": temperature}
    if prompt is None and sys.stdin.isatty():
        return _talk(place, messages, wishes, show_room=room)
    question = sys.stdin.read().strip() if prompt in (None, "-") else prompt
    if not question:
        raise CommandError("no prompt", "pdctl chat 'What is a page?'", code=Exit.USAGE)
    _answer(place, [*messages, _said("user", question)], wishes, show_room=room)
    return Exit.OK


def _talk(place: Place, messages: Messages, wishes: dict[str, Any], *, show_room: bool) -> int:
    say("an empty line or Ctrl-D ends it")
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            return Exit.OK
        if not question:
            return Exit.OK
        messages.append(_said("user", question))
        try:
            answer = _answer(place, messages, wishes, show_room=show_room)
        except CommandError as error:
            messages.pop()  # the model did not hear it
            say(f"pdctl: {error.what}\nhint: {error.hint}")
        else:
            messages.append(_said("assistant", answer))


def _answer(place: Place, messages: Messages, wishes: dict[str, Any], *, show_room: bool) -> str:
    """Print an answer while it comes, and return it."""
    from pdctl.client import Refused, Unreachable, stream

    body = {"model": "default", "messages": messages, "stream": True, **wishes}
    parts: list[str] = []
    room = ""
    try:
        for headers, event in stream(f"{place.url}/v1/chat/completions", body, idle_s=IDLE_S):
            room = headers.get(ROOM_HEADER, "")
            for choice in event.get("choices", []):
                text = choice.get("delta", {}).get("content") or ""
                parts.append(text)
                print(text, end="", flush=True)
    except Unreachable as trouble:
        raise CommandError(
            f"lb does not answer: {trouble}", "pdctl status", code=Exit.UNREACHABLE
        ) from trouble
    except Refused as refused:
        raise CommandError(
            f"{refused} ({refused.status})", "pdctl status, pdctl rooms --failed"
        ) from refused
    finally:
        if parts:
            print(flush=True)
    if show_room and room:
        say(f"room {room}")
    return "".join(parts)


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
