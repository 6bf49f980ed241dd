"""Prefill's prompt log-probabilities in decode's answer; pure.

Only prefill computes the prompt, so its lists are the truth; decode's own (empty) ones give way.
Bodies are those of ``/generate``: an object per prompt, a list of them for a batch, and in a
stream one object per event, with ``index`` in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

DATA = b"data: "

Lists = Mapping[str, Any]  # input_token_logprobs and its kin


def of_answer(body: bytes) -> dict[int, Lists]:
    """Return the lists of each prompt in a whole answer of prefill."""
    answer = _decoded(body)
    items = answer if isinstance(answer, list) else [answer]
    return {index: _lists(item) for index, item in enumerate(items)}


def into_answer(body: bytes, lists: Mapping[int, Lists]) -> bytes:
    """Return decode's whole answer with prefill's lists in it."""
    answer = _decoded(body)
    if answer is None:
        return body
    items = answer if isinstance(answer, list) else [answer]
    for index, item in enumerate(items):
        _put(item, lists.get(index, {}))
    return msgspec.json.encode(answer)


@dataclass(slots=True)
class Gathered:
    """The lists that came in a stream of prefill, by index."""

    lists: dict[int, Lists] = field(default_factory=dict)

    def take(self, event: bytes) -> None:
        """Read one event."""
        said = _payload(event)
        if isinstance(said, dict) and (found := _lists(said)):
            self.lists[_index(said)] = found


@dataclass(slots=True)
class Patch:
    """Puts the lists into the first and the last event of each index in decode's stream.

    The last one too, for clients of SGLang keep only that: there every event has all so far.
    """

    lists: Mapping[int, Lists]
    begun: set[int] = field(default_factory=set)

    def apply(self, event: bytes) -> bytes:
        """Return the event, changed if it is the first or the last of its index."""
        said = _payload(event)
        if not isinstance(said, dict) or (index := _index(said)) not in self.lists:
            return event
        if index in self.begun and not _is_last(said):
            return event
        self.begun.add(index)
        _put(said, self.lists[index])
        return DATA + msgspec.json.encode(said)


def _is_last(said: dict[str, Any]) -> bool:
    meta = said.get("meta_info")
    return isinstance(meta, dict) and meta.get("finish_reason") is not None


def _lists(item: Any) -> dict[str, Any]:
    meta = item.get("meta_info") if isinstance(item, dict) else None
    if not isinstance(meta, dict):
        return {}
    return {name: value for name, value in meta.items() if _is_list_of_prompt(name) and value}


def _put(item: Any, lists: Lists) -> None:
    if isinstance(item, dict) and isinstance(meta := item.setdefault("meta_info", {}), dict):
        meta.update(lists)


def _is_list_of_prompt(name: str) -> bool:
    return name.startswith("input_") and name.endswith("_logprobs")


def _index(said: dict[str, Any]) -> int:
    index = said.get("index", 0)
    return index if isinstance(index, int) else 0


def _payload(event: bytes) -> Any:
    """Return the JSON value of an event, None for an end mark or a comment."""
    return _decoded(event[5:]) if event.startswith(b"data:") else None


def _decoded(body: bytes) -> Any:
    """Return an answer's JSON value, None for what is none."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
