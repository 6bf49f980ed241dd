"""One stream of two: prefill's events of its first token, then what decode adds to them; pure.

- Both workers make exactly one event of the first token of each choice, the same on both sides. Of
  prefill only an event that does not end the text counts: how a text ends is decode's to say.
- Where prefill was first its event goes out, and decode's is compared with it and dropped; where
  decode was first, prefill's is dropped.
- A difference is a defect that no client may read past: it ends the stream with an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

DATA = b"data:"

Said = tuple[Any, ...]  # what an event says about its choice


class SeamBroken(Exception):
    """Decode goes on from another first token than the one that prefill brought."""


@dataclass(slots=True)
class Seam:
    """The two streams of one request, choice by choice."""

    choices: int  # of the whole request
    brought: dict[int, Said] = field(default_factory=dict)  # by prefill; decode must repeat it
    settled: set[int] = field(default_factory=set)  # choices that decode has begun

    @property
    def is_over(self) -> bool:
        """Say whether all further events are decode's, so that nobody needs to look at them."""
        return len(self.settled) >= self.choices

    def from_prefill(self, event: bytes) -> bytes | None:
        """Return the event if it goes to the client."""
        if self.is_over or (read := _read(event)) is None:
            return None
        index, said, ends = read
        if ends or index in self.settled or index in self.brought:
            return None
        self.brought[index] = said
        return event

    def from_decode(self, event: bytes) -> bytes | None:
        """Return the event if it goes to the client.

        Raises:
            SeamBroken: it is not the one that went there before.
        """
        if self.is_over or (read := _read(event)) is None:
            return event
        index, said, ends = read
        is_first = index not in self.settled
        self.settled.add(index)
        if not is_first or (expected := self.brought.pop(index, None)) is None:
            return event
        if ends or said != expected:
            end = " and ends" if ends else ""
            raise SeamBroken(f"prefill said {_shown(expected)}, decode says {_shown(said)}{end}")
        return None


def _read(event: bytes) -> tuple[int, Said, bool] | None:
    """Return index, content and whether it ends the text; None for what is about no choice."""
    try:
        said = msgspec.json.decode(event[len(DATA) :]) if event.startswith(DATA) else None
    except msgspec.DecodeError:
        return None
    if not isinstance(said, dict):
        return None
    if isinstance(meta := said.get("meta_info"), dict):  # of /generate
        text = said.get("text"), said.get("output_ids")
        return _index(said), text, meta.get("finish_reason") is not None
    choices = said.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    choice = choices[0]
    content = choice.get("text"), choice.get("delta")
    return _index(choice), content, choice.get("finish_reason") is not None


def _index(said: dict[str, Any]) -> int:
    index = said.get("index", 0)
    return index if isinstance(index, int) else 0


def _shown(said: Said) -> str:
    return repr(said)[:200]
