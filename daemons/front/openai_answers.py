"""Answers in OpenAI's shapes. Source: OpenAI's API reference; ``matched_stop`` is SGLang's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from daemons.front.answers import Answer
from daemons.front.model_card import ModelCard
from daemons.front.openai_bodies import usage_in_chunks, usage_in_stream
from daemons.front.output import End, Piece
from daemons.front.rooms import Call
from daemons.protocol.api.openai_bodies import SharedBody
from daemons.protocol.generate import FinishReason, TokenOut


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with its rooms not yet open."""

    shared: SharedBody
    envelope: Envelope
    call: Call
    answers: list[Answer]
    samples: int = 1  # of each prompt

    def usage_now(self) -> dict[str, object]:
        """Return what a chunk in the middle says of usage."""
        if usage_in_chunks(self.shared):
            return {"usage": usage(self.answers, self.samples)}
        return {"usage": None} if usage_in_stream(self.shared) else {}

    def last_chunks(self) -> list[object]:
        """Return what comes after the last choice has ended."""
        if not usage_in_stream(self.shared):
            return []
        return [self.envelope.chunk([], usage=usage(self.answers, self.samples))]

    def whole(self, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return an answer that does not stream."""
        return self.envelope.whole(choices, usage(self.answers, self.samples))


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk of one answer has in common."""

    id: str
    kind: str  # "object" of a whole answer
    chunk_kind: str  # and of a chunk of a stream
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """Return an answer that does not stream."""
        return {**self._head(self.kind), "choices": choices, "usage": usage}

    def chunk(self, choices: Sequence[dict[str, Any]], **more: object) -> dict[str, Any]:
        """Return one event of a stream."""
        return {**self._head(self.chunk_kind), "choices": choices, **more}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage(answers: Sequence[Answer], samples: int = 1) -> dict[str, Any]:
    """Return the token counts over all choices; a prompt counts once, whatever its samples."""
    firsts = answers[::samples]
    prompt = sum(len(answer.order.prompt) for answer in firsts)
    completion = sum(len(answer.tokens) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in firsts)},
    }


def ending(end: End | None, *, with_calls: bool = False) -> dict[str, Any]:
    """Return the fields of a choice that tell its end."""
    if end is None:
        return {"finish_reason": None}
    is_for_calls = with_calls and end.reason is FinishReason.STOP
    reason = "tool_calls" if is_for_calls else end.reason.value
    return {"finish_reason": reason, "matched_stop": end.matched}


class CompletionLogprobs:
    """Builds the ``logprobs`` of a completion; offsets go on from piece to piece.

    Only prefill computes the prompt, so decode's log-probabilities of an echoed prompt are null;
    whoever joins the legs puts prefill's in their place.
    """

    def __init__(self, card: ModelCard, wanted: int | None) -> None:
        self._card = card
        self._wanted = wanted
        self._offset = 0

    def of(self, tokens: Sequence[TokenOut]) -> dict[str, Any] | None:
        """Return those of the next tokens; None when nobody asked."""
        if self._wanted is None:
            return None
        texts = [self._card.token_text(token.id) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        tops = [self._tops(token) for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": tops if self._wanted else None,
            "text_offset": offsets,
        }

    def _tops(self, token: TokenOut) -> dict[str, float] | None:
        """The likeliest, and the chosen one; of two with one text the likelier."""
        if token.logprob is None:
            return None
        tops: dict[str, float] = {}
        for id_, logprob in (*token.top, (token.id, token.logprob)):
            tops.setdefault(self._card.token_text(id_), logprob)
        return tops


def echoed(answer: Answer, found: Sequence[TokenOut]) -> list[TokenOut]:
    """Return the prompt's tokens, with the log-probabilities that were found."""
    if found:
        return list(found)
    return [TokenOut(id_) for id_ in answer.order.prompt]


def chat_logprobs(card: ModelCard, tokens: Sequence[TokenOut]) -> dict[str, Any]:
    """Return the ``logprobs`` of a chat choice."""

    def shown(id_: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": card.token_text(id_),
            "logprob": logprob,
            "bytes": list(card.token_bytes(id_)),
        }

    return {
        "content": [
            {**shown(token.id, token.logprob), "top_logprobs": [shown(*top) for top in token.top]}
            for token in tokens
        ]
    }


def is_worth_a_chunk(piece: Piece, logprobs: int | None) -> bool:
    """Say whether a piece changes what a reader of a stream has."""
    return bool(piece.text or piece.end or (piece.tokens and logprobs is not None))
