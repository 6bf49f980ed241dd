"""Answers in OpenAI's shapes. Source: OpenAI's API reference; ``matched_stop`` is SGLang's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from daemons.front.answers import Answer
from daemons.front.model_card import ModelCard
from daemons.front.output import End, Piece
from daemons.protocol.generate import TokenOut


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk of one answer has in common."""

    id: str
    kind: str  # "object" of a whole answer
    chunk_kind: str  # and of a chunk of a stream
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[dict[str, Any]], answers: Sequence[Answer]) -> dict[str, Any]:
        """Return an answer that does not stream."""
        return {**self._head(self.kind), "choices": choices, "usage": usage(answers)}

    def chunk(self, choices: Sequence[dict[str, Any]], **more: object) -> dict[str, Any]:
        """Return one event of a stream."""
        return {**self._head(self.chunk_kind), "choices": choices, **more}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage(answers: Iterable[Answer]) -> dict[str, Any]:
    """Return the token counts over all choices."""
    answers = list(answers)
    prompt = sum(len(answer.order.prompt) for answer in answers)
    completion = sum(len(answer.tokens) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(a.cached_tokens for a in answers)},
    }


def ending(end: End | None) -> dict[str, Any]:
    """Return the fields of a choice that tell its end."""
    if end is None:
        return {"finish_reason": None}
    return {"finish_reason": end.reason.value, "matched_stop": end.matched}


class CompletionLogprobs:
    """Builds the ``logprobs`` of a completion; offsets go on from piece to piece."""

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
        tops = [{self._card.token_text(i): p for i, p in token.top} for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": tops if self._wanted else None,
            "text_offset": offsets,
        }


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
