"""The choices of ``/v1/chat/completions``: messages, or the deltas that they are made of.

The first event of a choice comes with its first token, has the role, and whatever text that token
settles; so the events of both legs of a room can be told apart and joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daemons.front.answers import Answer
from daemons.front.chat_text import ChatText
from daemons.front.model_card import ModelCard
from daemons.front.openai_answers import Asked, chat_logprobs, ending
from daemons.front.output import Piece


class ChatChoices:
    """Of one request."""

    def __init__(
        self, card: ModelCard, asked: Asked, texts: Sequence[ChatText], logprobs: int | None
    ) -> None:
        self._card = card
        self._asked = asked
        self._texts = texts
        self._logprobs = logprobs
        self._begun: set[int] = set()

    def events(self, n: int, piece: Piece) -> list[object]:
        """Return the chunks that a piece makes."""
        delta = self.take(n, piece)
        if n not in self._begun and (piece.tokens or piece.end):
            self._begun.add(n)
            delta = {"role": "assistant", "content": "", **delta}
        shows_logprobs = bool(piece.tokens) and self._logprobs is not None
        if not (delta or piece.end or shows_logprobs):
            return []
        choice = {
            "index": n,
            "delta": delta,
            "logprobs": self._shown(piece) if piece.tokens else None,
            **ending(piece.end, with_calls=self._texts[n].has_calls),
        }
        return [self._asked.envelope.chunk([choice], **self._asked.usage_now())]

    def take(self, n: int, piece: Piece) -> dict[str, Any]:
        """Take the next piece of a choice; return its delta."""
        self._asked.answers[n].add(piece)
        return self._texts[n].feed(piece.text, ends=piece.end is not None)

    def whole(self) -> dict[str, Any]:
        """Return the answer of all rooms, which have ended."""
        choices = [
            {
                "index": n,
                "message": text.message(),
                "logprobs": self._shown(answer),
                **ending(answer.end, with_calls=text.has_calls),
            }
            for n, (text, answer) in enumerate(zip(self._texts, self._asked.answers, strict=True))
        ]
        return self._asked.whole(choices)

    def _shown(self, said: Piece | Answer) -> dict[str, Any] | None:
        return None if self._logprobs is None else chat_logprobs(self._card, said.tokens)
