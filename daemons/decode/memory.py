"""All that a room holds on a decode: pages, window pages and a row, given and taken back together.

Window pages are reserved whole when a room is admitted and never grow, so it is never short of
them. They stay with it while the host keeps its pages. While a writer is offered some of them, all
are the writer's, and go into quarantine with the pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.decode.cache import Cache
from daemons.decode.config import DecodeConfig
from daemons.decode.quarantine import Held
from daemons.decode.request import Request
from daemons.engine.config import EngineConfig
from daemons.kv.ledger import Ledger, Owner
from daemons.kv.prefix_tree import PrefixTree
from daemons.kv.runs import pages_for
from daemons.kv.stretch import Stretch
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.kv.window_table import WindowTable, landed_at
from daemons.protocol.causes import Failure
from daemons.protocol.ids import RoomKey

QUARANTINED_ONE_IN = 4  # rooms of a batch, beside those that may be here


@dataclass(slots=True)
class Memory:
    """Who has what."""

    pages: Ledger
    window: Ledger
    rows: Ledger
    cache: Cache
    chunk_tokens: int  # of a prompt that is computed here, in a step at most
    pool: WindowPool = NO_POOL

    def too_small(self, tokens: int, *, local: bool) -> str:
        """Return why a room of so many tokens in all can never be here, "" when it can."""
        need = pages_for(tokens, self.cache.page_size)
        if need > self.pages.size:
            return f"{tokens} tokens need {need} pages, the pool has {self.pages.size}"
        window = self._window_need(need, local=local)
        if window > self.window.size:
            return f"{tokens} tokens need {window} window pages, there are {self.window.size}"
        return ""

    def lacks(self, request: Request) -> bool:
        """Say whether a room must wait for a row or for window pages."""
        need = self._window_need(request.need_pages, local=request.local)
        return need > self.window.available or (self.rows.free == 0 and not request.local)

    def reserve(self, request: Request, prompt_pages: int) -> None:
        """Give a room what its prompt needs beyond its lease, and window pages for all its stay."""
        key, owner = request.key, Owner.REQUEST if request.local else Owner.WRITER
        request.pages += self.pages.take(key, prompt_pages - len(request.lease), owner)
        if self.pool:
            need = self._window_need(request.need_pages, local=request.local)
            seen = 0 if request.local else self.pool.first_needed(request.prompt_tokens)
            end = 0 if request.local else prompt_pages
            request.window = landed_at(seen, end, self.window.take(key, need, owner))
        if not request.local:
            (request.row,) = self.rows.take(key, 1, owner)

    def offered(self, request: Request) -> Stretch:
        """Return where a writer was told to write a room's prompt."""
        own, window = request.lease.others(request.pages), request.window
        return Stretch(len(request.lease), own, window.first, window.pages)

    def landed(self, request: Request) -> None:
        """Make ours what the writer of a room has written; its row has been read."""
        assert request.row is not None
        key, own = request.key, request.lease.others(request.pages)
        self.pages.move(key, own, Owner.WRITER, Owner.REQUEST)
        self.window.move(key, request.window.own, Owner.WRITER, Owner.REQUEST)
        self.rows.release(key, (request.row,), Owner.WRITER)
        request.row = None

    def isolate(self, request: Request, failure: Failure, now: float) -> Held:
        """Take what a writer may still write from a room that is over, and return it."""
        assert request.peer is not None
        assert request.row is not None
        self.cache.end(request)
        key, window = request.key, request.window.own
        held = Held(request.peer, request.pages, request.row, failure, now, window=window)
        self.pages.move(key, held.pages, Owner.WRITER, Owner.QUARANTINED)
        self.window.move(key, held.window, Owner.WRITER, Owner.QUARANTINED)
        self.rows.move(key, (held.row,), Owner.WRITER, Owner.QUARANTINED)
        request.pages, request.row, request.window = (), None, WindowTable()
        return held

    def settle(self, key: RoomKey, held: Held) -> None:
        """Make free what nobody writes any more."""
        self.pages.release(key, held.pages, Owner.QUARANTINED)
        self.window.release(key, held.window, Owner.QUARANTINED)
        self.rows.release(key, (held.row,), Owner.QUARANTINED)

    def end(self, request: Request, *, keep: bool) -> None:
        """Take back what a room holds; ``keep`` for others what of its text is in its pages."""
        if keep:
            self.cache.keep(request)
        else:
            self.cache.release(request)
        self.window.release(request.key, request.window.own, Owner.REQUEST)
        request.window = WindowTable()

    def places(self, places: int) -> int:
        """Return for how many of ``places`` more rooms, of any length, there are window pages."""
        each = self._window_need(self.pages.size, local=False)
        return max(0, min(places, self.window.available // each) if each else places)

    def _window_need(self, text_pages: int, *, local: bool) -> int:
        return self.pool.needed(self.chunk_tokens if local else 1, text_pages)


def memory_of(config: DecodeConfig, pages: int, pool: WindowPool) -> Memory:
    """Return the memory of an instance whose KV pool has so many ``pages``."""
    engine, ledger = config.engine, Ledger(pages)
    tree = PrefixTree(ledger, engine.page_size)
    return Memory(
        ledger,
        Ledger(pool.pages, "window page"),
        Ledger(config.rows, "row"),
        Cache(ledger, tree, engine.page_size, config.prefix_cache, bool(pool)),
        engine.chunk_tokens,
        pool,
    )


def window_rooms(engine: EngineConfig) -> int:
    """Return for how many rooms there are to be window pages: all that may be here, and some more.

    These are rooms that are over, whose writer has not said so yet.
    """
    return 2 * engine.batch_rooms + -(-engine.batch_rooms // QUARANTINED_ONE_IN)
