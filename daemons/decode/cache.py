"""Decode's cached pages: what of a prompt need not travel again, or be computed here again.

A text that has ended leaves its whole pages, prompt and output, as far as their KV was written
here or arrived in full. Memory that a writer may still write is no text's. A prompt that prefill
computes may lie in cached pages to its last token: what is decoded goes behind it.

Layers with a window have pages of their own, which end with their room. Prefill sends those anew;
a prompt that is computed here begins at its first token.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.decode.request import Request
from daemons.kv.ledger import Ledger, Owner
from daemons.kv.prefix_tree import PrefixTree
from daemons.kv.reuse import reusable_pages


@dataclass(slots=True)
class Cache:
    """Lets rooms read what others left, and keeps what they leave."""

    pages: Ledger
    tree: PrefixTree
    page_size: int
    on: bool
    in_part: bool = False  # there are layers with a window, of whose pages nothing is kept

    def lease(self, request: Request) -> None:
        """Let a room that has no memory yet begin with the cached pages of its prompt."""
        if not self.on or (self.in_part and request.local):
            return
        submit = request.submit
        most = reusable_pages(submit, self.page_size) if request.local else len(submit.prompt)
        request.lease = self.tree.lease(request.key, submit.cache_salt, submit.prompt, most)
        request.pages = request.lease.pages
        if request.local:
            request.computed = request.cached_tokens = len(request.lease) * self.page_size

    def end(self, request: Request) -> None:
        """Let a room read no more; the pages that are its own stay with it."""
        request.pages = request.lease.others(request.pages)
        self.tree.end(request.key, request.lease)

    def release(self, request: Request) -> None:
        """Take back what a room holds, which is free, or still read by others."""
        self.end(request)
        self.pages.release(request.key, request.pages, Owner.REQUEST)
        request.pages = ()

    def keep(self, request: Request) -> None:
        """Take back what a room holds, and keep for others what of its text is in the pages."""
        if self.on:
            submit = request.submit
            text = (*submit.prompt, *request.output[:-1])  # the newest is not written
            self.tree.extend(request.key, submit.cache_salt, request.lease, text, request.pages)
        self.release(request)
