"""The choices of ``/v1/completions``: the prompt's echo, text, log-probabilities.

The first event of a choice comes with its first token, whatever text that settles; so the events
of both legs of a room can be told apart and joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daemons.front.answers import Answer
from daemons.front.model_card import ModelCard
from daemons.front.openai_answers import (
    Asked,
    CompletionLogprobs,
    echoed,
    ending,
    is_worth_a_chunk,
)
from daemons.front.output import Piece


class CompletionChoices:
    """Of one request."""

    def __init__(
        self, card: ModelCard, asked: Asked, echoes: Sequence[str | None], logprobs: int | None
    ) -> None:
        """``echoes`` has the prompt's text for each choice, None where no echo is wanted."""
        self._asked = asked
        self._echoes = echoes
        self._logprobs = logprobs
        self._makers = [CompletionLogprobs(card, logprobs) for _ in asked.answers]
        self._begun: set[int] = set()

    def events(self, n: int, piece: Piece) -> list[object]:
        """Return the chunks that a piece makes."""
        answer = self._asked.answers[n]
        answer.add(piece)
        is_first = n not in self._begun and bool(piece.tokens or piece.end)
        if not is_first and not is_worth_a_chunk(piece, self._logprobs):
            return []
        self._begun.add(n)
        choice = self._choice(n, piece.text, piece, with_echo=is_first)
        return [self._asked.envelope.chunk([choice], **self._asked.usage_now())]

    def whole(self) -> dict[str, Any]:
        """Return the answer of all rooms, which have ended."""
        choices = [
            self._choice(n, "".join(answer.text), answer, with_echo=True)
            for n, answer in enumerate(self._asked.answers)
        ]
        return self._asked.whole(choices)

    def _choice(
        self, n: int, text: str, said: Piece | Answer, *, with_echo: bool
    ) -> dict[str, Any]:
        echo = self._echoes[n] if with_echo else None
        tokens = list(said.tokens)
        if echo is not None:
            answer = self._asked.answers[n]
            tokens = [*echoed(answer, answer.prompt_logprobs), *tokens]
        return {
            "index": n,
            "text": (echo or "") + text,
            "logprobs": self._makers[n].of(tokens),
            **ending(said.end),
        }
