"""Window pages that belong to cached pages: a prefix can be gone on from where its last ones are.

A room leaves those that it still has; they are of a text's end, so an earlier place of the same
text may have none. Such a page goes by itself when window pages are wanted and nobody reads it,
the least recently read first; it goes with its node in any case.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from daemons.kv.ledger import Ledger, Owner, WrongOwner
from daemons.kv.prefix_tree import STALE_SHARE, Lease, Node
from daemons.kv.window_pool import WindowPool
from daemons.kv.window_table import WindowTable
from daemons.protocol.ids import RoomKey


class WindowCache:
    """The cached pages of the window pool's ledger: the companion of a prefix tree."""

    def __init__(self, pages: Ledger, pool: WindowPool) -> None:
        self._pages = pages
        self._pool = pool
        self._unread: list[tuple[int, int, Node]] = []  # a heap; some are read, or have gone
        self._entered = count()
        self._reads = 0
        self._size = 0
        self.evictions = 0
        pages.reclaim = self.evict

    def __len__(self) -> int:
        """Return how many window pages are cached."""
        return self._size

    def usable(self, nodes: Sequence[Node]) -> int:
        """Return how many pages of a path a room can begin with: all that the next token sees."""
        best, lacking = 0, -1
        for depth, node in enumerate(nodes, 1):
            lacking = depth - 1 if node.window < 0 else lacking
            best = depth if lacking < self._first_seen(depth) else best
        return best

    def read(self, key: RoomKey, lease: Lease) -> None:
        """Let ``key`` read the window pages that the token behind its lease sees."""
        lease.windows = lease.nodes[self._first_seen(len(lease)) :]
        for node in lease.windows:
            self._pages.read_by(key, node.window)

    def keep(self, key: RoomKey, lease: Lease, table: WindowTable) -> None:
        """Take in the window pages that a room has of the pages of its lease.

        They are written, and ``key`` will never write them again. Where there is one already the
        room's own remains its own.
        """
        for at in range(table.first, min(table.end, len(lease))):
            node, page = lease.nodes[at], table.pages[at - table.first]
            if node.window >= 0:
                continue
            self._pages.move(key, (page,), Owner.REQUEST, Owner.CACHED)
            self._pages.read_by(key, page)
            self._size += 1
            node.window = page
            lease.windows.append(node)
            table.read.add(page)

    def end(self, key: RoomKey, lease: Lease) -> None:
        """Let ``key`` read no more; what nobody reads now may go when pages are wanted."""
        self._reads += 1
        nodes, lease.windows = lease.windows, []
        for node in nodes:
            node.window_read_at = self._reads
            if self._pages.left_by(key, node.window):
                heapq.heappush(self._unread, (self._reads, next(self._entered), node))
        if len(self._unread) > STALE_SHARE * (self._size + STALE_SHARE):
            self._unread = [entry for entry in self._unread if self._may_go(entry)]
            heapq.heapify(self._unread)

    def dropped(self, node: Node) -> None:
        """Let a window page go with its node."""
        if node.window >= 0:
            self._pages.evict(node.window)
            node.window = -1
            self._size -= 1

    def evict(self, pages: int) -> None:
        """Make ``pages`` free of those that nobody reads, the least recently read first.

        Raises:
            WrongOwner: there are fewer.
        """
        while pages > 0:
            if not self._unread:
                raise WrongOwner(f"{pages} more window pages to evict, all others are read")
            entry = heapq.heappop(self._unread)
            if self._may_go(entry):
                self.dropped(entry[2])
                self.evictions += 1
                pages -= 1

    def _first_seen(self, pages: int) -> int:
        return self._pool.first_needed(pages * self._pool.windows.page_size)

    def _may_go(self, entry: tuple[int, int, Node]) -> bool:
        read_at, _, node = entry
        is_latest = node.window >= 0 and read_at == node.window_read_at
        return is_latest and not self._pages.readers(node.window)
