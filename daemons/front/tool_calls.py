"""Finds tool calls in a model's text, piece by piece, in the forms that models write them.

hermes
    ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, one or more (Hermes, Qwen).
llama3
    the whole text is ``{"name": ..., "parameters": {...}}``, more of them after ``;`` (Llama 3).

White space around calls is nobody's. What only looks like a call is text. A stream adds up to what
a whole answer says, for both are made of the same pieces.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from daemons.front.call_scanner import CallScanner
from daemons.front.text import beginning_of

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
BETWEEN = " \t\r\n,;[]"  # what may stand between the calls of a list


class ToolForm(StrEnum):
    """How a model writes its calls."""

    HERMES = "hermes"
    LLAMA3 = "llama3"


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a call; the first one of a call has its name."""

    index: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class ToolText:
    """Text in; content and calls out."""

    form: ToolForm
    names: Collection[str]
    one_only: bool = False  # later calls are dropped
    calls: int = field(default=0, init=False)  # that began
    _held: str = field(default="", init=False)
    _spoken: str = field(default="", init=False)  # since the tag: content again if it is no call
    _inside: bool = field(default=False, init=False)
    _plain: bool = field(default=False, init=False)  # no calls can come any more
    _scanner: CallScanner | None = field(default=None, init=False)
    _announced: bool = field(default=False, init=False)

    def feed(self, text: str) -> tuple[str, list[CallPiece]]:
        """Take more text; return the content and the pieces of calls that it settles."""
        self._held += text
        content: list[str] = []
        pieces: list[CallPiece] = []
        while self._advanced(content, pieces):
            pass
        return "".join(content), pieces

    def finish(self) -> tuple[str, list[CallPiece]]:
        """Return what is still held: the text has ended."""
        if self._announced:  # a call that is cut off keeps what it has
            return "", []
        left = self._spoken + (self._scanner.raw if self._scanner else "") + self._held
        return ("", []) if self.calls and not left.strip(BETWEEN) else (left, [])

    def _advanced(self, content: list[str], pieces: list[CallPiece]) -> bool:
        """Go on by one part of the text; say whether there may be more."""
        if self._plain:
            content.append(self._held)
            self._held = ""
            return False
        if self._scanner is not None:
            return self._scanned(self._scanner, content, pieces)
        if self._inside:
            return self._entered(content)
        if self.form is ToolForm.LLAMA3:
            return self._begun_with_brace()
        return self._tag_found(content)

    def _tag_found(self, content: list[str]) -> bool:
        before, tag, rest = self._held.partition(OPEN)
        if tag:
            content.append(before.rstrip())
            self._inside, self._spoken, self._held = (
                True,
                before[len(before.rstrip()) :] + tag,
                rest,
            )
            return True
        kept = before[: len(before) - beginning_of(before, (OPEN,))].rstrip()
        self._held = before[len(kept) :]
        content.append(kept)
        return False

    def _begun_with_brace(self) -> bool:
        text = self._held.lstrip()
        if not text or (PYTHON_TAG.startswith(text) and text != PYTHON_TAG):
            return False
        tag = PYTHON_TAG if text.startswith(PYTHON_TAG) else ""
        if text.removeprefix(tag).lstrip().startswith("{"):
            at = self._held.index("{")
            self._spoken, self._held = self._held[:at], self._held[at:]
            self._inside = True
            return True
        if tag and not text.removeprefix(tag).strip():
            return False
        self._plain = True
        return True

    def _entered(self, content: list[str]) -> bool:
        """Between calls: another one, the end of the tag, or something that is no call."""
        rest = self._held.lstrip(BETWEEN)
        if not rest:
            return False
        gap = self._held[: len(self._held) - len(rest)]
        if rest.startswith("{"):
            self._spoken += gap
            self._scanner, self._held = CallScanner(self.names), rest
            return True
        if self.form is ToolForm.HERMES and CLOSE.startswith(rest[: len(CLOSE)]):
            if len(rest) < len(CLOSE):
                return False
            self._inside, self._spoken, self._held = False, "", rest[len(CLOSE) :].lstrip()
            return True
        content.append(self._spoken)
        self._inside, self._spoken = False, ""
        self._plain = self.form is ToolForm.LLAMA3
        return True

    def _scanned(self, scanner: CallScanner, content: list[str], pieces: list[CallPiece]) -> bool:
        self._held = scanner.feed(self._held)
        if scanner.is_call is False:
            content.append(self._spoken + scanner.raw)
            self._scanner, self._spoken, self._inside = None, "", not scanner.done
            self._plain = True
            return True
        if scanner.is_call:
            self._tell(scanner, pieces)
        elif not self._announced:
            return False
        if not scanner.done:
            return False
        self._scanner, self._announced, self._spoken = None, False, ""
        return True

    def _tell(self, scanner: CallScanner, pieces: list[CallPiece]) -> None:
        is_new, self._announced = not self._announced, True
        if is_new:
            self.calls += 1
        arguments = scanner.arguments()
        if (is_new or arguments) and not (self.one_only and self.calls > 1):
            index = self.calls - 1
            pieces.append(CallPiece(index, scanner.name if is_new else None, arguments))
