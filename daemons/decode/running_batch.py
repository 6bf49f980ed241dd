"""Decode, stage 4 of 4: one token per room and step, until something ends the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from daemons.decode.request import Request
from daemons.engine.step import NEWEST, Item
from daemons.kv.ledger import Ledger, Owner
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.protocol.generate import FinishReason
from daemons.protocol.ids import RoomKey


@dataclass(slots=True)
class RunningBatch:
    """Rooms that are decoded together."""

    page_size: int
    batch_rooms: int
    pool: WindowPool = NO_POOL
    rooms: dict[RoomKey, Request] = field(default_factory=dict)

    def join(self, waiting: dict[RoomKey, Request], returning: int = 0) -> list[Request]:
        """Take rooms from ``waiting`` in order while there is a place; ``returning`` have one.

        A room whose grammar is still compiled lets others go first.
        """
        places = self.batch_rooms - returning - len(self.rooms)
        if places <= 0 or not waiting:
            return []
        joined = list(islice((room for room in waiting.values() if room.is_ready), places))
        for request in joined:
            self.rooms[request.key] = waiting.pop(request.key)
        return joined

    def short(self, pages: Ledger) -> list[Request]:
        """Return the rooms that cannot have the page they need now; most output goes first.

        A room that steps needs one more page at most.
        """
        return _short_of(self._needy(), pages)

    def step(self, pages: Ledger, *, whole: bool = False) -> list[Item]:
        """Return the next step of every room that is not short of a page, which it takes.

        A room may have a step under way already: then the engine goes on from what comes of it.
        ``whole``: nobody steps when anybody is short.
        """
        needy = self._needy()
        short = {request.key for request in _short_of(needy, pages)}
        if whole and short:
            return []
        for request in needy:
            if request.key not in short:
                request.pages += pages.take(request.key, 1, Owner.REQUEST)
        items: list[Item] = []
        has_windows = bool(self.pool)
        for key, request in self.rooms.items():
            if _is_full(request) or (short and key in short):
                continue
            under_way = request.in_steps
            token = NEWEST if under_way else request.output[-1]
            place = request.prompt_tokens + len(request.output) + under_way - 1
            if has_windows:
                (window := request.window).cover(self.pool, place, place + 1)
                table = window.pages, window.first
                items.append(Item(key, (token,), place, request.pages, True, *table))
            else:
                items.append(Item(key, (token,), place, request.pages, True))
            request.in_steps = under_way + 1
        return items

    def _needy(self) -> list[Request]:
        """Return the rooms whose next token needs another page."""
        size = self.page_size
        return [
            request
            for request in self.rooms.values()
            if request.position >= len(request.pages) * size and not _is_full(request)
        ]


def _short_of(needy: list[Request], pages: Ledger) -> list[Request]:
    """Return those of ``needy`` that must wait for a page."""
    if len(needy) <= pages.available:
        return []
    first = sorted(needy, key=lambda room: (-len(room.output), room.submitted_s, room.key))
    return first[pages.available :]


def _is_full(request: Request) -> bool:
    """Say whether what is under way brings a room's last token."""
    return len(request.output) + request.in_steps >= request.most


def finish_of(request: Request) -> tuple[FinishReason | None, int | None]:
    """Return why the newest token ends the text, and the token if it is the reason."""
    newest = request.output[-1]
    if newest in request.ends:
        return FinishReason.STOP, newest
    if len(request.output) >= request.most:
        return FinishReason.LENGTH, None
    return None, None
