"""Prefill, stage 2 of 3: first come, first served, as far as pages, rows and tokens go.

Rooms whose prompt is partly computed come before new ones, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.engine.step import Item
from daemons.kv.runs import pages_for
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.prefill.memory import Memory
from daemons.prefill.request import Request
from daemons.protocol.ids import RoomKey


@dataclass(slots=True)
class WaitingQueue:
    """Rooms that decode waits for: not begun, and begun."""

    page_size: int
    batch_tokens: int
    chunk_tokens: int
    batch_rooms: int
    pool: WindowPool = NO_POOL
    rooms: dict[RoomKey, Request] = field(default_factory=dict)
    begun: dict[RoomKey, Request] = field(default_factory=dict)

    def begin(self, memory: Memory) -> list[Request]:
        """Give memory to rooms in order until one does not fit; return those that got it.

        A room whose grammar is still compiled lets others go first.
        """
        fresh: list[Request] = []
        for key, request in list(self.rooms.items()):
            if not request.is_ready:
                continue
            if len(self.begun) >= self.batch_rooms or not memory.give(request):
                break
            self.begun[key] = self.rooms.pop(key)
            fresh.append(request)
        return fresh

    def batch(self) -> list[Item]:
        """Return the next chunk of each begun room, within the budget of tokens."""
        items: list[Item] = []
        budget = self.batch_tokens
        for request in self.begun.values():
            chunk = min(self.chunk_tokens, budget, len(request.prompt) - request.computed)
            if chunk <= 0:
                break
            items.append(self._item(request, chunk))
            budget -= chunk
        return items

    def moved(self, now: float) -> None:
        """A forward is done: rooms that wait for their turn in the next ones made progress too."""
        for request in self.begun.values():
            request.since_s = now

    def _item(self, request: Request, chunk: int) -> Item:
        start, end, first = request.computed, request.computed + chunk, 0
        if self.pool:
            request.window.cover(self.pool, start, end)
            first = self.pool.first_needed(start)  # the room may still have earlier ones
        return Item(
            request.key,
            request.prompt[start:end],
            start,
            request.pages[: pages_for(end, self.page_size)],
            end == len(request.prompt),
            request.window.part(first, request.window.end),
            first,
        )
