"""What the engine remembers of a room between forwards: what was asked, what was said."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from daemons.engine.batch import Table
from daemons.engine.grammar import Grammars, Walk
from daemons.engine.step import NEWEST, Item, Sequence


@dataclass(slots=True)
class Said:
    """The tokens that penalties are about, each once, with how often the output has it.

    Two arrays of a length, ``tokens`` and ``counts``, of C ints as the kernels read them. What was
    only asked counts 0.
    """

    tokens: array[int] = field(default_factory=lambda: array("i"))
    counts: array[int] = field(default_factory=lambda: array("i"))
    _places: dict[int, int] = field(default_factory=dict)

    def ask(self, tokens: Iterable[int]) -> None:
        """Take note of a prompt."""
        for token in tokens:
            self._place(token)

    def add(self, token: int) -> None:
        """Take note of a token of the output."""
        self.counts[self._place(token)] += 1

    def _place(self, token: int) -> int:
        place = self._places.setdefault(token, len(self.tokens))
        if place == len(self.tokens):
            self.tokens.append(token)
            self.counts.append(0)
        return place


@dataclass(slots=True)
class RoomState:
    """A room of the engine; ``output`` grows with each token that is chosen.

    Attributes:
        asked: what ``begin`` was given.
        output: tokens chosen so far, here or on the other side.
        said: tokens of the output, kept for penalties, and for a repetition penalty the prompt's.
        bias: tokens, each once, and what is added to their logits; of a length.
        walk: where the output is in its grammar.
        last_hidden: ``[1, hidden]`` of the last token run, while the prompt's log-probabilities
            are wanted: the next chunk's first token is judged by it.
        last_position: position of ``last_hidden``.
        fault: why the room can never run; told with each of its items.
        ends: tokens that end the text.
        table: the page table that was checked last.
        window_table: the same of layers with a window.
        takes_largest: nothing but ``min_tokens`` can keep it from the largest raw logit, and it
            wants to know no more.
    """

    asked: Sequence
    output: list[int] = field(default_factory=list)
    said: Said | None = None
    bias: tuple[array[int], array[float]] | None = None
    walk: Walk | None = None
    last_hidden: torch.Tensor | None = None
    last_position: int = -1
    fault: str = ""
    ends: frozenset[int] = frozenset()
    table: Table = field(default_factory=Table)
    window_table: Table = field(default_factory=Table)
    takes_largest: bool = False

    def add(self, token: int) -> None:
        """Take note of a token that was chosen."""
        self.output.append(token)
        if self.said is not None:
            self.said.add(token)
        if self.walk is not None:
            self.walk.add(token)


def begin_room(
    sequence: Sequence,
    vocab_size: int,
    grammars: Grammars | None = None,
) -> RoomState:
    """Return the state of a room that begins, here or again here.

    Args:
        sequence: what was asked and said.
        vocab_size: token ids are below it.
        grammars: where a grammar is compiled; a room without one needs none.
    """
    tokens = (*sequence.prompt, *sequence.output)
    state = RoomState(sequence, list(sequence.output), ends=sequence.sampling.ending_token_ids)
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        state.fault = f"a token id outside 0..{vocab_size - 1}"
        return state
    sampling = sequence.sampling
    biased = dict(sampling.logit_bias)
    if biased and max(biased) >= vocab_size:
        state.fault = f"logit_bias: a token id outside 0..{vocab_size - 1}"
        return state
    state.said = _said(sequence)
    if biased:
        state.bias = array("i", biased), array("f", biased.values())
    if sampling.grammar is not None and grammars is not None:
        state.walk = grammars.walk(sampling.grammar, sampling, sequence.output)
    state.takes_largest = (
        sampling.temperature == 0
        and sampling.logprobs is None
        and sampling.prompt_logprobs is None
        and state.said is None
        and state.bias is None
        and state.walk is None
    )
    return state


def _said(sequence: Sequence) -> Said | None:
    """Return what penalties need; None without any."""
    sampling = sequence.sampling
    repeats = sampling.repetition_penalty != 1.0
    if not (repeats or sampling.frequency_penalty or sampling.presence_penalty):
        return None
    said = Said()
    if repeats:
        said.ask(sequence.prompt)
    for token in sequence.output:
        said.add(token)
    return said


def resolved(state: RoomState, item: Item) -> tuple[Item, str]:
    """Return an item with the token that NEWEST stands for, and why that cannot be ("": it can).

    A step that was made before its token was known says where the token goes: so it can never run
    an older one, as after a step that failed. Nothing follows a token that ends the text.
    """
    if item.tokens != (NEWEST,):
        return item, ""
    place = len(state.asked.prompt) + len(state.output) - 1
    if not state.output or item.start != place:
        return item, f"no token was chosen for position {item.start}"
    newest = state.output[-1]
    if newest in state.ends:
        return item, "its text has ended"
    window = item.window, item.window_first
    return Item(item.key, (newest,), item.start, item.pages, item.samples, *window), ""


def judged_positions(state: RoomState, item: Item) -> range:
    """Return the prompt positions of an item whose log-probabilities are wanted."""
    sampling = state.asked.sampling
    if sampling.prompt_logprobs is None:
        return range(0)
    first = max(item.start, sampling.prompt_logprobs_start)
    return range(first, min(item.start + len(item.tokens), len(state.asked.prompt)))


def takes_largest(item: Item, state: RoomState) -> bool:
    """Say whether the largest raw logit is all that an item wants, if it wants any."""
    if not item.samples:
        return state.asked.sampling.prompt_logprobs is None
    return state.takes_largest and len(state.output) >= state.asked.sampling.min_tokens
