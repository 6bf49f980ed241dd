"""Whole pages that were computed once, found again by the tokens they hold and all before them.

A node is one page; its name is the page's tokens, its place the tokens before. A room that reads a
page reads the whole path to it, so a page that nobody reads has nobody reading below it, and all
that is cached and unread can go, leaf by leaf, the least recently read first. Only what is written
in full and will never be written again comes in. Trees of different salts never meet.

Where a model keeps another kind of state beside these pages, a companion says how much of a path
can be used with what is there of it, and hears of what is read and what goes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from daemons.kv.ledger import Ledger, Owner, WrongOwner
from daemons.protocol.ids import RoomKey

Tokens = tuple[int | str, ...]
STALE_SHARE = 4  # the heap is cleaned when it is so many times as large as the tree


@dataclass(slots=True, eq=False)
class Node:
    """One cached page; the root, and below it one node for each salt, have none (-1)."""

    parent: Node | None
    tokens: Tokens
    page: int
    children: dict[Tokens, Node] = field(default_factory=dict)
    read_at: int = 0  # by the tree's own count
    window: int = -1  # its window page; -1: there is none, or it has gone
    window_read_at: int = 0  # by the companion's count


@dataclass(slots=True)
class Lease:
    """What a room reads of the tree: a path from the root down, one node per page of its text."""

    nodes: list[Node] = field(default_factory=list)
    windows: list[Node] = field(default_factory=list)  # those whose window page is read too

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def pages(self) -> tuple[int, ...]:
        """The pages of the path, in token order."""
        return tuple(node.page for node in self.nodes)

    def others(self, pages: Sequence[int]) -> tuple[int, ...]:
        """Return those of a room's ``pages``, in token order, that are not the path's."""
        nodes = self.nodes
        return tuple(
            page for at, page in enumerate(pages) if at >= len(nodes) or nodes[at].page != page
        )


class Companion(Protocol):
    """Another kind of state that belongs to cached pages, and may be there for some of them."""

    def usable(self, nodes: Sequence[Node]) -> int:
        """Return how many nodes of a path a room can go on from."""
        ...

    def read(self, key: RoomKey, lease: Lease) -> None:
        """Keep what ``key`` needs to go on from a lease."""
        ...

    def end(self, key: RoomKey, lease: Lease) -> None:
        """Let ``key`` read no more."""
        ...

    def dropped(self, node: Node) -> None:
        """Let go what belongs to a page that nobody reads, and which goes."""
        ...


class PrefixTree:
    """The cached pages of one ledger."""

    def __init__(self, pages: Ledger, page_size: int, beside: Companion | None = None) -> None:
        self._pages = pages
        self._beside = beside
        self._page_size = page_size
        self._root = Node(None, (), -1)
        self._size = 0
        self._unread: list[tuple[int, int, Node]] = []  # a heap of leaves; some are so no more
        self._entered = count()
        self._reads = 0
        self.evictions = 0
        pages.reclaim = self.evict

    def __len__(self) -> int:
        """Return how many pages are cached."""
        return self._size

    def lease(self, key: RoomKey, salt: str, text: Sequence[int], pages: int) -> Lease:
        """Let ``key`` read the longest cached beginning of ``text``, at most ``pages`` of it."""
        lease, node = Lease(), self._root.children.get((salt,))
        for at in range(min(pages, len(text) // self._page_size)):
            if node is None or (node := node.children.get(self._name(text, at))) is None:
                break
            lease.nodes.append(node)
        if self._beside is not None:
            del lease.nodes[self._beside.usable(lease.nodes) :]
            self._beside.read(key, lease)
        for node in lease.nodes:
            self._pages.read_by(key, node.page)
        return lease

    def extend(
        self, key: RoomKey, salt: str, lease: Lease, text: Sequence[int], pages: Sequence[int]
    ) -> None:
        """Take in the pages of ``text`` beyond the lease, which then reaches to their end.

        Args:
            pages: where ``text`` lies, in token order; those beyond the lease are ``key``'s own.
                All that ``text`` fills are written, and ``key`` will never write them again.

        A page that is cached already stays, and the room's own remains its own.
        """
        end = len(text) // self._page_size
        if end <= len(lease):
            return
        node = lease.nodes[-1] if lease.nodes else self._salted(salt)
        for at in range(len(lease), end):
            name = self._name(text, at)
            child = node.children.get(name)
            if child is None:
                self._pages.move(key, (pages[at],), Owner.REQUEST, Owner.CACHED)
                child = node.children[name] = Node(node, name, pages[at])
                self._size += 1
            self._pages.read_by(key, child.page)
            lease.nodes.append(child)
            node = child

    def end(self, key: RoomKey, lease: Lease) -> None:
        """Let ``key`` read no more; what nobody reads now may go when pages are wanted."""
        self._reads += 1
        nodes, lease.nodes = lease.nodes, []
        for node in reversed(nodes):
            node.read_at = self._reads
            if self._pages.left_by(key, node.page):
                self._maybe_unread(node)
        if self._beside is not None:
            self._beside.end(key, lease)

    def evict(self, pages: int) -> None:
        """Make ``pages`` free of those that nobody reads, the least recently read first.

        Raises:
            WrongOwner: there are fewer.
        """
        while pages > 0:
            if not self._unread:
                raise WrongOwner(f"{pages} more pages to evict, all others are read")
            read_at, _, node = heapq.heappop(self._unread)
            if self._is_unread_leaf(node) and read_at == node.read_at:
                self._drop(node)
                pages -= 1

    def nodes(self) -> list[tuple[str, Tokens, Node]]:
        """Return each node with its salt and all tokens from the beginning; for checks."""
        found: list[tuple[str, Tokens, Node]] = []
        waiting: list[tuple[str, Tokens, Node]] = [
            (str(name[0]), (), node) for name, node in self._root.children.items()
        ]
        while waiting:
            salt, before, node = waiting.pop()
            for name, child in node.children.items():
                found.append((salt, (*before, *name), child))
                waiting.append((salt, (*before, *name), child))
        return found

    def _name(self, text: Sequence[int], at: int) -> Tokens:
        return tuple(text[at * self._page_size : (at + 1) * self._page_size])

    def _salted(self, salt: str) -> Node:
        return self._root.children.setdefault((salt,), Node(self._root, (salt,), -1))

    def _is_unread_leaf(self, node: Node) -> bool:
        """Say whether a node may go; one that has gone already, or has no page, may not."""
        parent = node.parent
        if parent is None or node.children or parent.children.get(node.tokens) is not node:
            return False
        return node.page >= 0 and not self._pages.readers(node.page)

    def _maybe_unread(self, node: Node) -> None:
        if self._is_unread_leaf(node):
            heapq.heappush(self._unread, (node.read_at, next(self._entered), node))
        if len(self._unread) > STALE_SHARE * (self._size + STALE_SHARE):
            self._clean()

    def _clean(self) -> None:
        """Forget leaves that are so no more, and the older places of those that are."""
        fresh = {id(n): (at, e, n) for at, e, n in self._unread if at == n.read_at}
        self._unread = [entry for entry in fresh.values() if self._is_unread_leaf(entry[2])]
        heapq.heapify(self._unread)

    def _drop(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        self._pages.evict(node.page)
        if self._beside is not None:
            self._beside.dropped(node)
        del parent.children[node.tokens]
        self._size -= 1
        self.evictions += 1
        if parent.page < 0 and not parent.children:
            del self._root.children[parent.tokens]
        self._maybe_unread(parent)
