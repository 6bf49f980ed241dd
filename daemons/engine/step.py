"""What a scheduler asks of the engine and what it gets back; plain values, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from daemons.protocol.generate import Grammar, Sampling, TokenOut
from daemons.protocol.ids import RoomKey

NEWEST = -1  # in place of a token id: the one that was chosen last for the room


@dataclass(frozen=True, slots=True)
class Sequence:
    """A room as the sampler sees it: what was asked, and the tokens so far (for penalties)."""

    key: RoomKey
    sampling: Sampling
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()  # on decode: the first token, which prefill chose


@dataclass(frozen=True, slots=True)
class Item:
    """One room's part of a forward: tokens at consecutive positions from ``start``."""

    key: RoomKey
    tokens: tuple[int, ...]  # token ids to run, or (NEWEST,); their KV is written
    start: int  # position of the first of them = tokens already in the cache
    pages: tuple[int, ...]  # page table: covers positions 0 .. start + len(tokens) - 1
    samples: bool  # choose a next token after the last of them
    # The same of layers with a window, by pages of their own: from the first that one of the tokens
    # sees (daemons/kv/window.py) or from before it, to the last that is written; () without any.
    window: tuple[int, ...] = ()
    window_first: int = 0  # the page of the text, counted from 0, that window begins with


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an :class:`Item`."""

    key: RoomKey
    token: TokenOut | None = None  # when the item samples
    prompt_logprobs: tuple[TokenOut, ...] = ()  # of this item's tokens, when asked for
    error: str = ""  # this room only; the others of the batch are well


@dataclass(frozen=True, slots=True)
class Prepare:
    """Command: have the grammar of a room compiled, beside the forwards; answered by Prepared.

    A room that runs before the answer has its whole batch wait.
    """

    key: RoomKey
    grammar: Grammar


@dataclass(frozen=True, slots=True)
class Begin:
    """Command: let the engine know a room before its first item."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Run:
    """Command: one forward, answered by StepDone or StepFailed.

    Several may wait; they are run and answered in order. An item of a later one may go on from a
    token that an earlier one chooses (NEWEST).
    """

    items: tuple[Item, ...]
    step: int = 0  # its number, where others follow its progress


@dataclass(frozen=True, slots=True)
class End:
    """Command: the engine may forget a room, and what it keeps of it."""

    key: RoomKey


@dataclass(frozen=True, slots=True)
class Keep:
    """Command: copy a room's pages into host memory; answered by Kept.

    Carried out in order with Run. The pages are read until the answer comes.
    """

    key: RoomKey
    pages: tuple[int, ...]  # in token order


@dataclass(frozen=True, slots=True)
class Restore:
    """Command: copy what is kept of a room into these pages; answered by Restored.

    They are as many as were kept, and are written until the answer comes; then nothing is kept.
    """

    key: RoomKey
    pages: tuple[int, ...]  # in token order


@dataclass(frozen=True, slots=True)
class Prepared:
    """Event: a room's grammar is there, or it is known that there will be none."""

    key: RoomKey


@dataclass(frozen=True, slots=True)
class StepDone:
    """Event: the oldest forward is done, with a result for each of its items."""

    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class StepFailed:
    """Event: the oldest forward broke as a whole; all its rooms fail with ``detail``."""

    keys: tuple[RoomKey, ...]
    detail: str


@dataclass(frozen=True, slots=True)
class Kept:
    """Event: a room's pages are in host memory, or (``error``) could not be brought there."""

    key: RoomKey
    error: str = ""


@dataclass(frozen=True, slots=True)
class Restored:
    """Event: a room's pages are what they were, or (``error``) could not be filled."""

    key: RoomKey
    error: str = ""
