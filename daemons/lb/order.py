"""What a client ordered: read once, so that both legs get the same bytes; pure.

Top-level fields stay as the bytes they came in; only ``bootstrap_*`` is ours, whatever the client
put there. A list of prompts is a batch; each of the ``n`` samples of each item has a room of its
own, item by item.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

GENERATE = "/generate"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

DEFAULT_TOKENS = 128  # of a text whose length nobody asked for
PROMPTS = {"text": 4, "prompt": 4, "messages": 4, "input_ids": 5}  # bytes of JSON per token

OURS = ("bootstrap_", "local_prefill")  # beginnings of names that clients may not use
SESSION_FIELDS = ("session_id", "user")  # of a body that keeps its requests together
SESSION_CHARACTERS = 256
MOST_TOKENS = ("max_completion_tokens", "max_tokens")  # the first that says something
COMPARED_BYTES = 64 << 10  # of a prompt

BRACKET = ord("[")

_token_ids = re.compile(rb"\[\s*-?[0-9]+\s*[,\]]")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class BadOrder(Exception):
    """The body cannot be served; the text tells the client why."""


class Order(msgspec.Struct, frozen=True):
    """One request of a client."""

    path: str
    fields: Mapping[str, msgspec.Raw]
    items: int | None  # prompts of a batch; None: a single prompt
    stream: bool
    tokens: int  # of all prompts and texts; an estimate, for only the tokenizer knows
    prompt_tokens: int  # of the prompts alone
    wants_prompt_logprobs: bool  # prefill's list goes into decode's answer
    samples: int = 1  # texts of each prompt
    raw: bytes = b""  # the body, where none of its fields is one of ours: they are added at its end

    @property
    def rooms(self) -> int:
        """How many rooms it needs."""
        return (1 if self.items is None else self.items) * self.samples

    @property
    def prompt(self) -> bytes:
        """Return the beginning of the prompt as it came, for comparing only."""
        name = next((name for name in PROMPTS if name in self.fields), None)
        return b"" if name is None else bytes(memoryview(self.fields[name])[:COMPARED_BYTES])

    @property
    def session(self) -> str:
        """Return what the body says that requests belong together by, "" when it does not."""
        for name in SESSION_FIELDS:
            if isinstance(said := _value(self.fields, name), str) and said:
                return said[:SESSION_CHARACTERS]
        return ""

    def salted(self, client: str) -> Order:
        """Return the order with a cache of its client's own: no prefix is shared with others.

        What the client itself says stays part of it, so its own salts still keep apart.
        """
        said = _value(self.fields, "cache_salt")
        mine = (
            [_salt(client, one) for one in said] if isinstance(said, list) else _salt(client, said)
        )
        fields = {**self.fields, "cache_salt": msgspec.Raw(msgspec.json.encode(mine))}
        return msgspec.structs.replace(self, fields=fields, raw=b"")

    def body(
        self, rooms: Sequence[int], host: str, port: int, prefill: str, attempt: int = 1
    ) -> bytes:
        """Return the bytes for both legs: the client's fields, and where the legs meet.

        ``prefill`` is "" for workers that know each other by host and port alone.
        """
        if self.items is None and self.samples == 1:
            if self.raw and attempt == 1:
                begun = self.raw[: self.raw.rindex(b"}")] + (b"," if self.fields else b"")
                return b"%b%b%d}" % (begun, _meeting(host, port, prefill), rooms[0])
            meeting: dict[str, object] = {
                "bootstrap_host": host,
                "bootstrap_port": port,
                "bootstrap_room": rooms[0],
            }
        else:
            meeting = {
                "bootstrap_host": [host] * self.rooms,
                "bootstrap_port": [port] * self.rooms,
                "bootstrap_room": list(rooms),
            }
        if prefill:
            meeting["bootstrap_instance"] = prefill
        return self._with(meeting, attempt)

    def alone_body(self, rooms: Sequence[int], attempt: int = 1) -> bytes:
        """Return the bytes for a decode that computes the prompt by itself."""
        room = list(rooms) if self.items is not None or self.samples > 1 else rooms[0]
        return self._with({"bootstrap_room": room, "local_prefill": True}, attempt)

    def _with(self, meeting: dict[str, object], attempt: int) -> bytes:
        if attempt > 1:
            meeting["bootstrap_attempt"] = attempt
        theirs = {name: value for name, value in self.fields.items() if not name.startswith(OURS)}
        return msgspec.json.encode(theirs | meeting)


def read_order(path: str, raw: bytes, max_items: int) -> Order:
    """Return the order in a body.

    Raises:
        BadOrder: not a JSON object, or a batch of no or too many items.
    """
    try:
        fields = _fields.decode(raw)
        items = _items(path, fields)
        stream = "stream" in fields and _value(fields, "stream") is True
        wishes = _value(fields, "sampling_params")
        samples = _samples(path, fields, wishes)
        prompt_tokens = _prompt_tokens(fields)
        tokens = (prompt_tokens + _most_tokens(fields, wishes) * (items or 1)) * samples
        wanted = _wants_prompt(path, fields)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadOrder(f"body: {error}") from error
    if items is not None and not 1 <= items <= max_items:
        raise BadOrder(f"{items} prompts in one request, 1 to {max_items} are served")
    if samples > 1 and (items or 1) * samples > max_items:
        texts = (items or 1) * samples
        raise BadOrder(f"{texts} texts in one request, 1 to {max_items} are served")
    plain = b"" if any(name.startswith(OURS) for name in fields) else raw
    return Order(path, fields, items, stream, tokens, prompt_tokens, wanted, samples, plain)


def _salt(client: str, said: object) -> object:
    """Return a salt that no other client can name; what is no text, the workers refuse."""
    if said is None:
        said = ""
    return f"{len(client)}:{client}:{said}" if isinstance(said, str) else said


@lru_cache(256)  # as many as there are prefills
def _meeting(host: str, port: int, prefill: str) -> bytes:
    """Return the fields of a single room as they stand before its number."""
    fields: dict[str, object] = {"bootstrap_instance": prefill} if prefill else {}
    fields |= {"bootstrap_host": host, "bootstrap_port": port}
    return msgspec.json.encode(fields)[1:-1] + b',"bootstrap_room":'


def _samples(path: str, fields: Mapping[str, msgspec.Raw], wishes: Any) -> int:
    """Return how many texts each prompt gets; 1 for what a worker will refuse."""
    if path != GENERATE:
        samples = _value(fields, "n")
    else:
        first = wishes[0] if isinstance(wishes, list) and wishes else wishes
        samples = first.get("n") if isinstance(first, dict) else None
    is_count = isinstance(samples, int) and not isinstance(samples, bool)
    return max(1, samples) if is_count else 1


def _wants_prompt(path: str, fields: Mapping[str, msgspec.Raw]) -> bool:
    """Say whether log-probabilities of the prompt may be wanted, which only prefill knows."""
    if path == GENERATE:
        wanted = _value(fields, "return_logprob")
        return any(wanted) if isinstance(wanted, list) else bool(wanted)
    is_shown = path == COMPLETIONS and _value(fields, "echo") is True
    return is_shown and _value(fields, "logprobs") is not None


def _most_tokens(fields: Mapping[str, msgspec.Raw], wishes: Any) -> int:
    for name in MOST_TOKENS:
        if name in fields and isinstance(asked := _value(fields, name), int):
            return asked
    asked = wishes.get("max_new_tokens") if isinstance(wishes, dict) else None
    return asked if isinstance(asked, int) else DEFAULT_TOKENS


def _prompt_tokens(fields: Mapping[str, msgspec.Raw]) -> int:
    tokens = 0
    for name, bytes_per_token in PROMPTS.items():
        if name in fields:
            tokens += len(memoryview(fields[name])) // bytes_per_token
    return tokens


def _items(path: str, fields: Mapping[str, msgspec.Raw]) -> int | None:
    """Return the length of a batch; None for one prompt (or what a worker will refuse)."""
    if path == CHAT:
        return None
    if path == COMPLETIONS:
        return _batch(fields.get("prompt"), token_ids=True)
    text = _batch(fields.get("text"), token_ids=False)
    return text if text is not None else _batch(fields.get("input_ids"), token_ids=True)


def _batch(raw: msgspec.Raw | None, *, token_ids: bool) -> int | None:
    """A list of integers is one prompt where token ids may stand; any other list is a batch."""
    if raw is None or memoryview(raw)[0] != BRACKET:
        return None
    if token_ids and _token_ids.match(memoryview(raw)):  # long ones are not read for that
        return None
    prompts = msgspec.json.decode(raw)
    if token_ids and prompts and isinstance(prompts[0], int):
        return None
    return len(prompts)


def _value(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    raw = fields.get(name)
    return None if raw is None else msgspec.json.decode(raw)
