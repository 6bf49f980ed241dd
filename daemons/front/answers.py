"""Answers in the shape of SGLang's ``/generate``.

Source: SGLang ``managers/tokenizer_manager.py``. Streams carry the whole text so far in every
event, as there. A log-probability is ``[logprob, token id, text or null]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from daemons.front.output import End, Order, Piece
from daemons.protocol.generate import FinishReason, TokenOut

Shown = list[Any]  # [logprob, id, text]
TokenText = Callable[[int], str]


@dataclass(slots=True)
class Answer:
    """What a room has brought so far."""

    order: Order
    token_text: TokenText | None = None  # texts beside log-probabilities
    text: list[str] = field(default_factory=list)
    tokens: list[TokenOut] = field(default_factory=list)
    prompt_logprobs: tuple[TokenOut, ...] = ()
    cached_tokens: int = 0
    end: End | None = None

    def add(self, piece: Piece) -> None:
        """Take the next piece."""
        self.text.append(piece.text)
        self.tokens.extend(piece.tokens)
        self.cached_tokens = max(self.cached_tokens, piece.cached_tokens)
        if piece.prompt_logprobs is not None:
            self.prompt_logprobs += piece.prompt_logprobs
        self.end = piece.end or self.end

    def body(self, elapsed_s: float) -> dict[str, Any]:
        """Return the answer as it is now; ``elapsed_s`` since the request came."""
        return {
            "text": "".join(self.text),
            "output_ids": [token.id for token in self.tokens],
            "meta_info": self._meta(elapsed_s),
        }

    def _meta(self, elapsed_s: float) -> dict[str, Any]:
        order = self.order
        meta: dict[str, Any] = {
            "id": order.rid,
            "finish_reason": finish_reason(self.end, len(self.tokens)),
            "prompt_tokens": len(order.prompt),
            "completion_tokens": len(self.tokens),
            "cached_tokens": self.cached_tokens,
            "e2e_latency": elapsed_s,
            "bootstrap_room": order.key.room,
        }
        wanted = order.sampling.logprobs
        if wanted is not None:
            meta["input_token_logprobs"] = self._shown(self.prompt_logprobs)
            meta["output_token_logprobs"] = self._shown(self.tokens)
            if wanted > 0:
                meta["input_top_logprobs"] = self._tops(self.prompt_logprobs)
                meta["output_top_logprobs"] = self._tops(self.tokens)
        return meta

    def _shown(self, tokens: Iterable[TokenOut]) -> list[Shown]:
        return [self._show(token.id, token.logprob) for token in tokens]

    def _tops(self, tokens: Iterable[TokenOut]) -> list[list[Shown] | None]:
        return [[self._show(*pair) for pair in token.top] or None for token in tokens]

    def _show(self, id_: int, logprob: float | None) -> Shown:
        return [logprob, id_, self.token_text(id_) if self.token_text else None]


def finish_reason(end: End | None, tokens: int) -> dict[str, Any] | None:
    """Return SGLang's finish reason; None while the text goes on."""
    if end is None:
        return None
    if end.reason is FinishReason.LENGTH:
        return {"type": "length", "length": tokens}
    return {"type": "stop", "matched": end.matched}
