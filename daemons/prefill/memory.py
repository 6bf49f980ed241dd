"""All that a room holds on a prefill: pages, window pages and a row, given and taken together."""

from __future__ import annotations

from dataclasses import dataclass

from daemons.engine.config import EngineConfig
from daemons.kv.ledger import Ledger, Owner
from daemons.kv.prefix_tree import PrefixTree
from daemons.kv.runs import pages_for
from daemons.kv.window_cache import WindowCache
from daemons.kv.window_pool import WindowPool
from daemons.prefill.cache import Cache
from daemons.prefill.config import PrefillConfig
from daemons.prefill.request import Request


@dataclass(slots=True)
class Memory:
    """Who has what."""

    rows: Ledger
    cache: Cache

    def give(self, request: Request) -> bool:
        """Give a room what it needs for its whole stay; False when it is not to be had."""
        if self.rows.free == 0 or not self.cache.give(request):
            return False
        (request.row,) = self.rows.take(request.key, 1, Owner.REQUEST)
        return True

    def release(self, request: Request) -> None:
        """Take back what a room holds; nothing of ours reads or writes it any more."""
        self.cache.release(request)
        if request.row is not None:
            self.rows.release(request.key, (request.row,), Owner.REQUEST)

    def too_small(self, tokens: int) -> str:
        """Return why a prompt can never be here, "" when it can."""
        cache = self.cache
        need = pages_for(tokens, cache.page_size)
        if need > cache.pages.size:
            return f"{tokens} tokens need {need} pages, the pool has {cache.pages.size}"
        window = cache.pool.needed(cache.chunk_tokens, need)
        if window > cache.window.size:
            return f"{tokens} tokens need {window} window pages, there are {cache.window.size}"
        return ""

    def credits(self, places: int, waiting: int) -> dict[str, int]:
        """Return what another room may count on; of window pages each room needs as many."""
        cache = self.cache
        if each := cache.pool.needed(cache.chunk_tokens, cache.pages.size):
            places = min(places, cache.window.available // each)
        return {
            "tokens": cache.pages.available * cache.page_size,
            "rows": self.rows.free,
            "places": max(0, places),
            "queue": waiting,
        }


def memory_of(config: PrefillConfig, pages: int, pool: WindowPool) -> Memory:
    """Return the memory of an instance whose KV pool has so many ``pages``."""
    engine, ledger, window = config.engine, Ledger(pages), Ledger(pool.pages, "window page")
    beside = WindowCache(window, pool) if pool else None
    cache = Cache(
        ledger,
        PrefixTree(ledger, engine.page_size, beside),
        engine.page_size,
        config.prefix_cache,
        min(engine.chunk_tokens, engine.batch_tokens),
        pool,
        window,
        beside,
    )
    return Memory(Ledger(config.rows, "row"), cache)


def window_rooms(engine: EngineConfig) -> int:
    """Return for how many rooms there are to be window pages: a batch, and one that is sent."""
    return 2 * engine.batch_rooms
