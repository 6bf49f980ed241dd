"""Drive engines as a scheduler would: chunks, decode steps, several rooms in one forward."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence as Several
from dataclasses import dataclass, field

import torch

from daemons.engine.engine import Engine
from daemons.engine.step import Item, Result, Sequence
from daemons.kv.window import first_needed_page, window_pages_needed
from daemons.protocol.generate import Sampling, TokenOut
from daemons.protocol.ids import RoomKey

GREEDY = Sampling(temperature=0.0, max_tokens=64)


@dataclass(slots=True)
class WindowPages:
    """A room's window pages; one that is left behind is used again when another is wanted.

    Attributes:
        window: tokens that a layer sees, itself included.
        page_size: tokens per page.
        free: pages that hold nothing yet.
        held: by page of the text, ascending.
    """

    window: int
    page_size: int
    free: list[int]
    held: dict[int, int] = field(default_factory=dict)

    def cover(self, start: int, tokens: int) -> tuple[tuple[int, ...], int]:
        """Return the table for some tokens, and the page of the text that it begins with."""
        first = first_needed_page(start, self.window, self.page_size)
        wanted = range(first, -(-(start + tokens) // self.page_size))
        for page in wanted:
            if page not in self.held:
                oldest = next(iter(self.held), first)
                assert self.free or oldest < first, "fewer pages than a room needs"
                self.held[page] = self.free.pop() if self.free else self.held.pop(oldest)
        return tuple(self.held[page] for page in wanted), first

    def usable(self, tokens: int) -> int:
        """Return how much of the beginning of a text a room could go on from, in tokens."""
        for pages in range(tokens // self.page_size, 0, -1):
            text = pages * self.page_size
            first = first_needed_page(text, self.window, self.page_size)
            if all(page in self.held for page in range(first, pages)):
                return text
        return 0


def window_pages(engine: Engine, key: RoomKey, chunk: int) -> WindowPages:
    """Return the window pages of a room that runs ``chunk`` tokens at once; no other has them."""
    window = engine.windows.largest
    needed = window_pages_needed(window, chunk, engine.page_size)
    order = random.Random(7).sample(range(engine.window_pages), engine.window_pages)
    own = order[(key.room - 1) * needed : key.room * needed]
    assert len(own) == needed, "a larger window pool is wanted"
    return WindowPages(window, engine.page_size, own)


@dataclass(slots=True)
class Talk:
    """One room of a test: what it says so far, and how much of it lies in the cache."""

    key: RoomKey
    prompt: tuple[int, ...]
    pages: tuple[int, ...]
    sampling: Sampling = GREEDY
    cached: int = 0
    said: list[TokenOut] = field(default_factory=list)
    prompt_logprobs: list[TokenOut] = field(default_factory=list)
    window: WindowPages | None = None  # given by the first step, where the engine has some

    @property
    def tokens(self) -> list[int]:
        """The ids that were said."""
        return [token.id for token in self.said]

    def next_item(self, chunk: int) -> Item:
        """Return the next chunk of the prompt, or the next step after it."""
        text = (*self.prompt, *self.tokens)
        end = min(len(text), self.cached + chunk)
        tokens, start = text[self.cached : end], self.cached
        window = () if self.window is None else self.window.cover(start, len(tokens))
        return Item(self.key, tokens, start, self.pages, end == len(text), *window)

    def take(self, item: Item, result: Result) -> None:
        """Note what a forward brought; a test that expects errors does not come here."""
        assert result.error == ""
        self.cached += len(item.tokens)
        self.prompt_logprobs += result.prompt_logprobs
        if result.token is not None:
            self.said.append(result.token)


def begin(engine: Engine, talks: Several[Talk]) -> None:
    """Make the rooms known to an engine, with what they said already."""
    for talk in talks:
        engine.begin(Sequence(talk.key, talk.sampling, talk.prompt, tuple(talk.tokens)))


def step(engine: Engine, talks: Several[Talk], chunk: int) -> None:
    """Run one forward for all of them."""
    for talk in talks:
        if engine.window_pages and talk.window is None:
            talk.window = window_pages(engine, talk.key, chunk)
    items = [talk.next_item(chunk) for talk in talks]
    for talk, item, result in zip(talks, items, engine.forward(items), strict=True):
        talk.take(item, result)


def talk_on(engine: Engine, talks: Several[Talk], tokens: int, *, chunk: int = 32) -> None:
    """Step until each has said ``tokens`` tokens; each leaves the batch when it has."""
    while live := [talk for talk in talks if len(talk.said) < tokens]:
        step(engine, live, chunk)


def prefill(engine: Engine, talk: Talk, *, chunk: int = 32) -> None:
    """Begin a room and run its prompt, up to its first token, as the prefill side does."""
    begin(engine, [talk])
    talk_on(engine, [talk], 1, chunk=chunk)
    engine.end(talk.key)


def hand_over(
    source: Engine, target: Engine, talk: Talk, pages: Several[int], *, chunk: int = 32
) -> None:
    """Copy a room's pages into another engine's, by address, as a transfer backend does.

    ``chunk``: the most tokens that it runs at once there.
    """
    used = -(-talk.cached // source.page_size)
    device = source._place.device
    full = [*zip(talk.pages[:used], pages[:used], strict=True)]
    windowed = full
    if talk.window is not None:
        before, _ = talk.window.cover(talk.cached, 0)
        talk.window = window_pages(target, talk.key, chunk)
        windowed = [*zip(before, talk.window.cover(talk.cached, 0)[0], strict=True)]
    for ours, theirs in zip(source.kv_regions(), target.kv_regions(), strict=True):
        assert (ours.layer, ours.kind, ours.head) == (theirs.layer, theirs.kind, theirs.head)
        assert ours.page_bytes == theirs.page_bytes
        for mine, its in full if source.windows.of(ours.layer) is None else windowed:
            into = memory_at(theirs.address + its * theirs.page_bytes, theirs.page_bytes, device)
            into.copy_(memory_at(ours.address + mine * ours.page_bytes, ours.page_bytes, device))
    talk.pages = tuple(pages)


@dataclass(frozen=True, slots=True)
class _OnDevice:
    """Memory of a CUDA device, as numba's ``__cuda_array_interface__`` of version 2 tells it."""

    address: int
    length: int

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        data = (self.address, False)  # writable
        return {"shape": (self.length,), "typestr": "|u1", "data": data, "version": 2}


def memory_at(address: int, length: int, device: torch.device) -> torch.Tensor:
    """Return bytes of a device as they lie there, not a copy: uint8 ``[length]``."""
    if device.type == "cpu":
        return torch.frombuffer((ctypes.c_ubyte * length).from_address(address), dtype=torch.uint8)
    return torch.as_tensor(_OnDevice(address, length), device=device)
