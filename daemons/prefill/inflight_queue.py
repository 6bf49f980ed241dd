"""Prefill, stage 3 of 3: the pages are computed and on their way to decode."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.prefill.commands import WriteKV
from daemons.prefill.request import Request
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import Row, pack


@dataclass(slots=True)
class InflightQueue:
    """Rooms whose forward is done, until every byte has landed."""

    rooms: dict[RoomKey, Request] = field(default_factory=dict)

    def lane_moved(self, peer: PeerId | None, now: float) -> None:
        """A write to ``peer`` is over: those that wait behind it have made progress too."""
        for request in self.rooms.values():
            if request.peer == peer:
                request.since_s = now


def next_write(
    request: Request, page_size: int, step: int = 0, pool: WindowPool = NO_POOL
) -> WriteKV | None:
    """Return the write of what is computed and not handed over yet, None when there is none.

    Only whole pages leave before the prompt is complete; the last write has the rest and the
    row, even when no page is left to send. Pages that decode already has are passed over, and
    window pages that no token behind the prompt sees.

    ``step`` is the forward that runs the room's next chunk: what that computes is handed over
    too, to be sent while it goes on. The row is not: it needs the first token.
    """
    destination = request.destination
    assert destination is not None
    assert request.row is not None
    last = request.first is not None
    prompt_tokens = len(request.prompt)
    computed = request.computed + (request.step_tokens if step else 0)
    is_whole = computed == prompt_tokens
    done = len(request.pages) if is_whole else computed // page_size
    prefix = destination.prefix_tokens // page_size
    seen = pool.first_needed(prompt_tokens) if pool else done
    begin, window_begin = max(request.handed, prefix), max(request.handed, seen)
    request.handed = max(done, request.handed)
    if min(begin, window_begin) >= done and not last:
        return None
    row = Row(request.key, request.first, request.cached_tokens) if request.first else None
    return WriteKV(
        request.key,
        destination.sender,
        request.pages[begin:done],
        destination.pages[begin - prefix : max(done - prefix, 0)],
        pack(row) if row else None,
        request.row,
        destination.row,
        first=begin,
        source_window=request.window.part(window_begin, done),
        target_window=destination.window_pages[window_begin - seen : max(done - seen, 0)],
        window_first=window_begin,
        prompt_tokens=prompt_tokens,
        by_s=request.expires_s,
        step=step,
    )
