"""One room's output on its way to a client: tokens in, settled pieces of text out. Pure.

Both legs of a room see its tokens from the first on and hold back the same text, so the pieces of
one leg may be continued by those of the other. Prefill's text ends with its first token, which is
the end of a leg and not of the text: nothing that was held back comes out there.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from daemons.front.text import Detokenizer, StopStrings
from daemons.protocol.generate import FinishReason, Output, Sampling, Submit, TokenOut
from daemons.protocol.ids import RoomKey


@dataclass(frozen=True, slots=True)
class Order:
    """A checked request for one room."""

    key: RoomKey
    prompt: tuple[int, ...]
    sampling: Sampling
    prefill: str  # instance that serves the room's prompt
    rid: str
    stops: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""
    keep_stop: bool = False  # leave what ended the text in the text
    prompt_only: bool = False  # no text is wanted: the one token that there must be is not told
    trace: str = ""  # id of the client's trace
    hands_over: bool = False  # decode goes on with the text after its first token

    def submit(self, timeout_s: float) -> Submit:
        """Return what the rank is told."""
        room, attempt = self.key
        return Submit(
            room,
            attempt,
            self.prompt,
            self.sampling,
            self.prefill,
            timeout_s,
            self.rid,
            self.priority,
            self.cache_salt,
            self.trace,
        )


@dataclass(frozen=True, slots=True)
class End:
    """A good end; ``matched`` is the stop string or the token that ended the text."""

    reason: FinishReason
    matched: str | int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step adds to a room's output."""

    text: str
    tokens: tuple[TokenOut, ...]
    end: End | None = None
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenOut, ...] | None = None


class Track:
    """The output of one room from its first token to its end."""

    def __init__(self, order: Order, tokenizer: Tokenizer) -> None:
        self._order = order
        self._text = Detokenizer(
            tokenizer, order.prompt, skip_special_tokens=order.skip_special_tokens
        )
        self._stops = StopStrings(order.stops, order.sampling.min_tokens, order.keep_stop)
        self._tokens = 0
        self._withheld: Piece | None = None
        self.end: End | None = None

    @property
    def begun(self) -> bool:
        """Whether a token has come."""
        return self._tokens > 0

    def feed(self, output: Output) -> Piece:
        """Take what the rank brought; the piece ends at a stop string, whatever comes after.

        Where the room is handed over, a text that ends with its first token ends when the rank says
        that decode has it: until then the piece is withheld.
        """
        if self._withheld is not None:
            withheld, self._withheld = self._withheld, None
            self.end = withheld.end
            return withheld
        piece = self._fed(output)
        if self._order.hands_over and piece.end is not None and output.finish is None:
            self._withheld, self.end = piece, None
            return Piece("", ())
        return piece

    def _fed(self, output: Output) -> Piece:
        out: list[str] = []
        taken = 0
        for taken, token in enumerate(output.tokens, 1):
            self._tokens += 1
            ends = output.finish is FinishReason.STOP and taken == len(output.tokens)
            silent = ends and output.finish_token == token.id and not self._order.keep_stop
            piece, matched = self._stops.feed(
                "" if silent else self._text.step(token.id), self._tokens
            )
            out.append(piece)
            if matched is not None:
                self.end = End(FinishReason.STOP, matched)
                break
        if self.end is None and output.finish is not None:
            self.end = self._ended(output, out)
        if self._order.prompt_only:
            out, taken = [], 0
        return Piece(
            "".join(out),
            output.tokens[:taken],
            self.end,
            output.cached_tokens,
            output.prompt_logprobs,
        )

    def _ended(self, output: Output, out: list[str]) -> End:
        goes_on = self._order.hands_over and self._tokens < self._order.sampling.max_tokens
        if goes_on and output.finish is FinishReason.LENGTH:
            return End(FinishReason.LENGTH)
        piece, matched = self._stops.feed(self._text.flush(), self._tokens)
        out.append(piece)
        if matched is not None:
            return End(FinishReason.STOP, matched)
        out.append(self._stops.flush())
        assert output.finish is not None
        return End(output.finish, output.finish_token)
