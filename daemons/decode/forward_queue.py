"""Decode, in place of stages 1 to 2: rooms whose prompt this instance computes by itself.

They have all pages of their prompt from the beginning, so nothing that runs can hold them up. A
chunk shares its step with the tokens of running rooms, which go first: what is left of
``chunk_tokens`` is for prompts, in order, and at least a page of one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from daemons.decode.request import Request
from daemons.engine.config import EngineConfig
from daemons.engine.step import Item, Result
from daemons.kv.runs import pages_for
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.protocol.ids import RoomKey


@dataclass(slots=True)
class ForwardQueue:
    """Rooms whose prompt is not yet computed."""

    engine: EngineConfig
    pool: WindowPool = NO_POOL
    rooms: dict[RoomKey, Request] = field(default_factory=dict)

    def step(self, rows: int) -> list[Item]:
        """Return the next chunks, for a step that has ``rows`` running rooms already."""
        engine = self.engine
        budget = engine.batch_tokens
        if rows:
            budget = max(engine.page_size, min(budget, engine.chunk_tokens - rows))
        places = max(1, engine.batch_rooms - rows)
        items: list[Item] = []
        ready = (request for request in self.rooms.values() if request.is_ready)
        for request in islice(ready, places):
            left = len(request.submit.prompt) - request.computed
            chunk = min(engine.chunk_tokens, budget, left)
            if chunk <= 0:
                break
            budget -= chunk
            request.chunk, request.in_steps = chunk, request.in_steps + 1
            items.append(self._item(request, chunk))
        return items

    def computed(self, request: Request, result: Result, now: float) -> int:
        """Count the chunk that a result is about, and return its tokens.

        Rooms wait for each other here, so a chunk of one is progress of all.
        """
        for other in self.rooms.values():
            other.since_s = now
        chunk, request.chunk = request.chunk, 0
        request.computed += chunk
        request.prompt_logprobs.extend(result.prompt_logprobs)
        return chunk

    def _item(self, request: Request, chunk: int) -> Item:
        prompt, start, end = request.submit.prompt, request.computed, request.computed + chunk
        pages = request.pages[: pages_for(end, self.engine.page_size)]
        samples, window = end == len(prompt), request.window
        if self.pool:
            window.cover(self.pool, start, end)
        return Item(
            request.key, prompt[start:end], start, pages, samples, window.pages, window.first
        )
