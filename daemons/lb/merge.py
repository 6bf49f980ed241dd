"""Prefill's prompt log-probabilities in decode's answer; pure.

Only prefill computes the prompt, so its lists are the truth; decode's own give way. In a body of
``/generate`` they are lists of their own: an object per prompt, a list of them for a batch, and in
a stream one object per event, with ``index`` in a batch. In a completion's ``choices`` the prompt
that is echoed stands before the text in the same lists: there only nulls of decode give way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

DATA = b"data: "
OF_CHOICE = ("token_logprobs", "top_logprobs")  # of a completion

Lists = Mapping[str, Any]  # input_token_logprobs and its kin


def of_answer(body: bytes) -> dict[int, Lists]:
    """Return the lists of each prompt in a whole answer of prefill."""
    return {index: _lists(item) for index, item in enumerate(_items(_decoded(body)))}


def into_answer(body: bytes, lists: Mapping[int, Lists]) -> bytes:
    """Return decode's whole answer with prefill's lists in it."""
    answer = _decoded(body)
    if answer is None:
        return body
    for index, item in enumerate(_items(answer)):
        _put(item, lists.get(index, {}))
    return msgspec.json.encode(answer)


@dataclass(slots=True)
class Gathered:
    """The lists that came in a stream of prefill, by index."""

    lists: dict[int, Lists] = field(default_factory=dict)

    def take(self, event: bytes) -> None:
        """Read one event."""
        said = _payload(event)
        for item in _items(said):
            index = _index(item)
            is_new = index not in self.lists or "choices" not in said  # only the first one echoes
            if is_new and (found := _lists(item)):
                self.lists[index] = found


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
        changed = [item for item in _items(said) if self._is_due(item)]
        for item in changed:
            self.begun.add(_index(item))
            _put(item, self.lists[_index(item)])
        return DATA + msgspec.json.encode(said) if changed else event

    def _is_due(self, item: Any) -> bool:
        index = _index(item)
        return index in self.lists and (index not in self.begun or _is_last(item))


def _items(said: Any) -> list[Any]:
    """Return the parts of an answer or event that have an index each."""
    if isinstance(said, dict):
        choices = said.get("choices")
        return choices if isinstance(choices, list) else [said]
    return said if isinstance(said, list) else []


def _is_last(said: Any) -> bool:
    meta = said.get("meta_info") if isinstance(said, dict) else None
    return isinstance(meta, dict) and meta.get("finish_reason") is not None


def _lists(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        return {}
    if isinstance(shown := item.get("logprobs"), dict):
        return {name: value for name in OF_CHOICE if isinstance(value := shown.get(name), list)}
    meta = item.get("meta_info")
    if not isinstance(meta, dict):
        return {}
    return {name: value for name, value in meta.items() if _is_list_of_prompt(name) and value}


def _put(item: Any, lists: Lists) -> None:
    if isinstance(item, dict) and isinstance(shown := item.get("logprobs"), dict):
        for name in OF_CHOICE:
            if isinstance(own := shown.get(name), list):
                shown[name] = _filled(own, lists.get(name, ()))
    elif isinstance(item, dict) and isinstance(meta := item.setdefault("meta_info", {}), dict):
        meta.update(lists)


def _is_list_of_prompt(name: str) -> bool:
    return name.startswith("input_") and name.endswith("_logprobs")


def _filled(own: list[Any], found: Sequence[Any]) -> list[Any]:
    """Return a list with what was found in the places of its nulls."""
    padded = [*found, *([None] * len(own))]
    return [there if one is None else one for one, there in zip(own, padded, strict=False)]


def _index(said: Any) -> int:
    index = said.get("index", 0) if isinstance(said, dict) else 0
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
