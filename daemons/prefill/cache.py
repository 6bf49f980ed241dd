"""Prefill's cached pages: what of a prompt need not be computed again.

What a prompt was read from, and what was computed for it, stays where it is until every write has
ended. Of layers with a window a room has a bounded number of pages of its own; while many are free
it takes more, so that an earlier place of its text can be gone on from too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.kv.ledger import Ledger, Owner
from daemons.kv.prefix_tree import Lease, PrefixTree
from daemons.kv.reuse import reusable_pages
from daemons.kv.runs import pages_for
from daemons.kv.window_cache import WindowCache
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.kv.window_table import WindowTable
from daemons.prefill.request import Request

# The half of the window pages is for what rooms need; one may take half of what is free beyond.
PLENTY_SHARE = 2


@dataclass(slots=True)
class Cache:
    """Gives memory to rooms, part of it already computed, and keeps what they leave."""

    pages: Ledger
    tree: PrefixTree
    page_size: int
    on: bool
    chunk_tokens: int = 1  # of a room, at most, in a forward
    pool: WindowPool = NO_POOL
    window: Ledger = field(default_factory=lambda: Ledger(0, "window page"))
    beside: WindowCache | None = None  # the tree's companion, where there is such a pool

    def give(self, request: Request) -> bool:
        """Give a room all pages of its prompt; False when they are not to be had."""
        key, submit = request.key, request.submit
        need = pages_for(len(submit.prompt), self.page_size)
        reusable = reusable_pages(submit, self.page_size) if self.on else 0
        if need - reusable > self.pages.available:
            return False
        lease = self.tree.lease(key, submit.cache_salt, submit.prompt, reusable)
        if self._take(request, lease, need):
            return True
        cannot = len(lease.windows) + self._least(need - len(lease)) > self.window.size
        self.tree.end(key, lease)
        # what it would read and what it would write are more than there are: it reads nothing
        return cannot and self._take(request, Lease(), need)

    def keep(self, request: Request) -> None:
        """Let others read the whole pages of a prompt that is computed."""
        if self.on:
            key, submit, lease = request.key, request.submit, request.lease
            self.tree.extend(key, submit.cache_salt, lease, submit.prompt, request.pages)
            if self.beside is not None:
                self.beside.keep(key, lease, request.window)

    def release(self, request: Request) -> None:
        """Take back what a room holds."""
        own = request.lease.others(request.pages)
        self.pages.release(request.key, own, Owner.REQUEST)
        self.window.release(request.key, request.window.own, Owner.REQUEST)
        self.tree.end(request.key, request.lease)

    def _take(self, request: Request, lease: Lease, need: int) -> bool:
        """Give a room what it needs beyond a lease, all or nothing."""
        key, more = request.key, need - len(lease)
        least = self._least(more)
        if more > self.pages.available or least > self.window.available:
            return False
        request.lease = lease
        request.pages = lease.pages + self.pages.take(key, more, Owner.REQUEST)
        request.computed = request.cached_tokens = len(lease) * self.page_size
        if self.pool:
            plenty = min(more, self._plenty()) if self.on else 0
            own = self.window.take(key, max(least, plenty), Owner.REQUEST)
            read = tuple(node.window for node in lease.windows)
            request.window = WindowTable(len(lease) - len(read), read, own, set(read))
        return True

    def _plenty(self) -> int:
        """Return how many window pages a room may take, whatever it needs."""
        beyond = self.window.available - self.window.size // PLENTY_SHARE
        return max(0, min(self.window.free, beyond)) // PLENTY_SHARE

    def _least(self, text_pages: int) -> int:
        """Return how many window pages of its own a room needs for so much of its text."""
        return self.pool.needed(self.chunk_tokens, text_pages)
