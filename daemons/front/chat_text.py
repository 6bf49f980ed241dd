"""What a chat's text is made of: thoughts, content, tool calls. Pure.

One room's pieces go through here in order, whether they are streamed or summed up, so both say the
same; and so do both legs of the room.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from daemons.front.reasoning import ThinkSplit
from daemons.front.tool_calls import CallPiece, ToolText
from daemons.protocol.ids import RoomKey


@dataclass(slots=True)
class ChatText:
    """The parts of one answer; either split may be absent."""

    key: RoomKey
    think: ThinkSplit | None = None
    tools: ToolText | None = None
    reasoning: str = field(default="", init=False)
    content: str = field(default="", init=False)
    calls: list[dict[str, Any]] = field(default_factory=list, init=False)

    def feed(self, text: str, *, ends: bool) -> dict[str, Any]:
        """Take more text, the last of it when it ``ends``; return the delta that it makes."""
        thoughts, answer = self.think.feed(text) if self.think else ("", text)
        if ends and self.think:
            more_thoughts, more_answer = self.think.finish()
            thoughts, answer = thoughts + more_thoughts, answer + more_answer
        content, pieces = self.tools.feed(answer) if self.tools else (answer, [])
        if ends and self.tools:
            more_content, more_pieces = self.tools.finish()
            content, pieces = content + more_content, pieces + more_pieces
        return self._told(thoughts, content, pieces)

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return bool(self.calls)

    def message(self) -> dict[str, Any]:
        """Return the message that the answer has become."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self.calls and not self.content else self.content,
            "refusal": None,
        }
        if self.think is not None:
            message["reasoning_content"] = self.reasoning or None
        if self.calls:
            message["tool_calls"] = self.calls
        return message

    def _told(self, thoughts: str, content: str, pieces: list[CallPiece]) -> dict[str, Any]:
        self.reasoning += thoughts
        self.content += content
        delta: dict[str, Any] = {}
        if thoughts:
            delta["reasoning_content"] = thoughts
        if content:
            delta["content"] = content
        if pieces:
            delta["tool_calls"] = [self._called(piece) for piece in pieces]
        return delta

    def _called(self, piece: CallPiece) -> dict[str, Any]:
        if piece.name is None:
            self.calls[piece.index]["function"]["arguments"] += piece.arguments
            return {"index": piece.index, "function": {"arguments": piece.arguments}}
        function = {"name": piece.name, "arguments": piece.arguments}
        call = {"id": self._id(piece.index), "type": "function", "function": function}
        self.calls.append(call)
        return {"index": piece.index, **call, "function": dict(function)}

    def _id(self, index: int) -> str:
        """Return a call's id: the same on both legs."""
        return f"call_{hashlib.blake2b(f'{self.key}:{index}'.encode(), digest_size=12).hexdigest()}"
