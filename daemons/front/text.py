"""Text that grows with its tokens: whole characters only, and stop strings that may span pieces.

What was handed out is never taken back: a piece that may still change (an incomplete UTF-8
character, the beginning of a stop string) is held until it is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"  # what a decoder makes of an incomplete character
HELD_TOKENS_LIMIT = 32  # so many tokens are no single character: hand out what there is
WINDOW_TOKENS = 16  # decoded at least so far back when the last tokens have no text
CONTEXT_TOKENS = 5  # of the prompt, so that a leading space is kept where one belongs


class Detokenizer:
    """Tokens of one output, in; the text that each of them adds, out."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids = list(prompt[-CONTEXT_TOKENS:])
        self._before = self._decoded(self._ids)  # text of the window that is already out
        if self._before.endswith(REPLACEMENT):  # the prompt ends inside a character
            self._ids, self._before = [], ""
        self._settled = len(self._ids)  # tokens of the window whose text is out

    def step(self, token: int) -> str:
        """Return the text that ``token`` settles, "" while a character is incomplete."""
        self._ids.append(token)
        text = self._decoded(self._ids)
        held = len(self._ids) - self._settled
        if text.endswith(REPLACEMENT) and held < HELD_TOKENS_LIMIT:
            return ""
        return self._hand_out(text)

    def flush(self) -> str:
        """Return what is still held, incomplete as it is."""
        if self._settled == len(self._ids):
            return ""
        return self._hand_out(self._decoded(self._ids))

    def _hand_out(self, text: str) -> str:
        piece = text[len(self._before) :]
        rest = self._ids[self._settled :]
        before = self._decoded(rest)
        if before or len(self._ids) > WINDOW_TOKENS:
            self._ids, self._before = rest, before
        else:  # special tokens only: a window of theirs would cost the next word its space
            self._before = text
        self._settled = len(self._ids)
        return piece

    def _decoded(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip) if ids else ""


@dataclass(slots=True)
class StopStrings:
    """Cuts a text at the first stop string; the earliest place wins, then the order given.

    A stop string counts when it is complete after at least ``min_tokens`` tokens.
    """

    stops: tuple[str, ...]
    min_tokens: int = 0
    keep: bool = False  # leave the stop string in the text
    _held: str = field(default="", init=False)

    def feed(self, piece: str, tokens: int) -> tuple[str, str | None]:
        """Take the text of the ``tokens``-th token; return what may go out, and the match."""
        if not self.stops:
            return piece, None
        self._held += piece
        if tokens >= self.min_tokens:
            at, stop = self._first()
            if stop is not None:
                out = self._held[: at + len(stop)] if self.keep else self._held[:at]
                self._held = ""
                return out, stop
        keep_from = len(self._held) - beginning_of(self._held, self.stops)
        out, self._held = self._held[:keep_from], self._held[keep_from:]
        return out, None

    def flush(self) -> str:
        """Return what was held: the text has ended, so it began no stop string."""
        out, self._held = self._held, ""
        return out

    def _first(self) -> tuple[int, str | None]:
        found = ((self._held.find(stop), n) for n, stop in enumerate(self.stops))
        places = [(at, n) for at, n in found if at >= 0]
        if not places:
            return -1, None
        at, n = min(places)
        return at, self.stops[n]


def beginning_of(text: str, marks: Sequence[str]) -> int:
    """Return how many last characters of a text may begin one of the marks."""
    longest = max(len(mark) for mark in marks) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(mark.startswith(tail) and len(mark) > length for mark in marks):
            return length
    return 0
