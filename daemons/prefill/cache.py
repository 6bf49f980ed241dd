"""Prefill's cached pages: what of a prompt need not be computed again.

What a prompt was read from, and what was computed for it, stays where it is until every write has
ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.kv.ledger import Ledger, Owner
from daemons.kv.prefix_tree import PrefixTree
from daemons.kv.reuse import reusable_pages
from daemons.kv.runs import pages_for
from daemons.prefill.request import Request


@dataclass(slots=True)
class Cache:
    """Gives memory to rooms, part of it already computed, and keeps what they leave."""

    pages: Ledger
    tree: PrefixTree
    page_size: int
    on: bool

    def give(self, request: Request) -> bool:
        """Give a room all pages of its prompt; False when they are not to be had."""
        key, submit = request.key, request.submit
        need = pages_for(len(submit.prompt), self.page_size)
        reusable = reusable_pages(submit, self.page_size) if self.on else 0
        if need - reusable > self.pages.available:
            return False
        lease = self.tree.lease(key, submit.cache_salt, submit.prompt, reusable)
        if need - len(lease) > self.pages.available:
            self.tree.end(key, lease)
            return False
        request.lease = lease
        request.pages = lease.pages + self.pages.take(key, need - len(lease), Owner.REQUEST)
        request.computed = request.cached_tokens = len(lease) * self.page_size
        return True

    def keep(self, request: Request) -> None:
        """Let others read the whole pages of a prompt that is computed."""
        if self.on:
            submit = request.submit
            self.tree.extend(
                request.key, submit.cache_salt, request.lease, submit.prompt, request.pages
            )

    def release(self, request: Request) -> None:
        """Take back what a room holds."""
        own = request.lease.others(request.pages)
        self.pages.release(request.key, own, Owner.REQUEST)
        self.tree.end(request.key, request.lease)
