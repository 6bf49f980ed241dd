"""Reads one tool call, ``{"name": ..., "arguments": {...}}``, while it is being written.

The arguments are handed on as the very text of the model. An object is a call only when its name
is one of the tools'; what turns out to be none is given back whole.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field

ARGUMENTS = ("arguments", "parameters")  # Hermes and Qwen; Llama 3


@dataclass(slots=True)
class CallScanner:
    """One JSON object; ``raw`` begins with its brace."""

    names: Collection[str]
    raw: str = ""
    name: str | None = None
    done: bool = False  # the closing brace came
    _told: int = field(default=0, init=False)  # characters of the arguments that are out
    _at: int = field(default=0, init=False)
    _depth: int = field(default=0, init=False)
    _string_from: int | None = field(default=None, init=False)
    _escaped: bool = field(default=False, init=False)
    _key: str | None = field(default=None, init=False)
    _is_value: bool = field(default=False, init=False)
    _span: tuple[int, int | None] | None = field(default=None, init=False)  # of the arguments

    def feed(self, text: str) -> str:
        """Take more text; return what follows the object, "" while it goes on."""
        self.raw += text
        while self._at < len(self.raw) and not self.done:
            self._step(self.raw[self._at])
            self._at += 1
        rest = self.raw[self._at :]
        self.raw = self.raw[: self._at]
        return rest

    @property
    def is_call(self) -> bool | None:
        """Whether this is a call; None while nobody can know."""
        if self.name is not None:
            return self.name in self.names
        return False if self.done else None

    def arguments(self) -> str:
        """Return what was not returned yet of the arguments."""
        if self._span is None:
            if not self.done or self._told:
                return ""
            self._told = 1
            return "{}"
        begin, end = self._span
        if self.raw[begin] == '"':  # written twice as JSON: as one text, when it is complete
            if end is None or self._told:
                return ""
            self._told = 1
            return _text(self.raw[begin:end]) or "{}"
        known = self.raw[begin : len(self.raw) if end is None else end]
        out, self._told = known[self._told :], max(len(known), self._told)
        return out

    def _step(self, character: str) -> None:
        if self._string_from is not None:
            self._in_string(character)
            return
        if self._awaits_arguments and not character.isspace():
            self._span = (self._at, None)
        match character:
            case '"':
                self._string_from = self._at
            case "{" | "[":
                self._depth += 1
            case "}" | "]":
                self._depth -= 1
                self._closed()
            case ":" if self._depth == 1:
                self._is_value = True
            case "," if self._depth == 1:
                self._end_of_arguments(self._at)
                self._is_value, self._key = False, None
            case _:
                pass

    @property
    def _awaits_arguments(self) -> bool:
        is_next = self._depth == 1 and self._is_value and self._span is None
        return is_next and self._key in ARGUMENTS

    def _in_string(self, character: str) -> None:
        if self._escaped or character == "\\":
            self._escaped = not self._escaped
            return
        if character != '"':
            return
        begin, self._string_from = self._string_from, None
        if self._depth != 1 or begin is None:
            return
        said = _text(self.raw[begin : self._at + 1])
        if not self._is_value:
            self._key = said
        elif self._key == "name" and self.name is None:
            self.name = said or ""
        self._end_of_arguments(self._at + 1) if self._is_value else None

    def _closed(self) -> None:
        if self._depth == 1:
            self._end_of_arguments(self._at + 1)
        elif self._depth <= 0:
            self._end_of_arguments(self._at)
            self.done = True

    def _end_of_arguments(self, at: int) -> None:
        if self._span is not None and self._span[1] is None and self._key in ARGUMENTS:
            self._span = (self._span[0], at)


def _text(word: str) -> str | None:
    """Return what a JSON string says; None where it is none."""
    try:
        said = json.loads(word, strict=False)
    except ValueError:
        return None
    return said if isinstance(said, str) else None
