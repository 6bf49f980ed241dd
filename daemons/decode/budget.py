"""How much memory may be promised: the rule of admission, and why nobody stands still for ever.

A room is admitted with the pages of its prompt; it takes the others one by one. With

- P pages in the pool, H that the host may keep, and of each room n, all that it may ever need,
- U, pages that cannot be moved: offered to a writer, or in quarantine,
- M, the largest n of all rooms that have memory,

these hold after every admission, and every other step keeps them, since rooms only end, become
movable when their bytes are here, or leave no more in quarantine than they had been offered:

1. pages in use, on the host and promised  <=  P + max(0, H - M)
2. U without a room's own + that room's n  <=  P, for every room

A step that lacks a page retracts whole rooms, never the one with the most output. *That one goes
on*: while others are on the device they can leave it, for where P is exhausted (1) leaves M pages
of the host unused, and no room is larger; alone it has P - U pages, and by (2) they suffice. When
nothing is left on the device but what cannot be moved, the oldest kept room fits by (2), and comes
back before anybody is admitted. So in every step somebody gets a token, and tokens are finite.

A room whose prompt is computed here cannot move until that is done, but it has all pages that it
needs for it: it gets on in every step, and can move then. So it counts as one that can.

Without host memory (H = 0) rule 1 says that all anybody may need is there: (2) follows, nothing is
ever retracted. The same holds for a room that the host could not take (n > H).

A cached page that nobody reads is as good as free. One that is read is in use, and cannot be moved
while a room that reads it is in transfer. Several rooms may read one page; each of them takes a
copy along to the host and needs one of its own when it is back. So it counts once for each reader,
and only without host memory, where nobody leaves, just once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from daemons.decode.request import Request
from daemons.kv.ledger import Ledger, Owner
from daemons.kv.runs import pages_for


@dataclass(slots=True)
class Budget:
    """What is used and promised now, in pages; it counts on as rooms are admitted."""

    pages: Ledger
    page_size: int
    host_pages: int
    promises: int = 0  # on the host, and promised
    reads: int = 0  # of cached pages, one for each page and room
    fixed_reads: int = 0  # those of rooms in transfer
    longest: int = 0  # M
    farthest: int = 0  # the largest n that a room has beyond what is unmovable of its own
    growing: int = 0  # rooms on the device that will want pages, one each at a time

    @property
    def committed(self) -> int:
        """In use, on the host, and promised; what several rooms read may count several times."""
        shared = self.reads - self.pages.read if self.host_pages else 0
        return self.pages.size - self.pages.available + self.promises + shared

    def fits(self, request: Request) -> bool:
        """Say whether a room may be admitted now; it has no pages but those that it reads."""
        need, prompt, reads = request.need_pages, self.prompt_pages(request), len(request.lease)
        overcommit = max(0, self.host_pages - max(self.longest, need))
        again = reads if self.host_pages else 0
        if self.committed + again + need - reads > self.pages.size + overcommit:
            return False
        offered = 0 if request.local else prompt
        farthest = max(self.farthest, need - offered)
        if self.host_pages and self._unmovable + offered + farthest > self.pages.size:
            return False
        return prompt - reads + self.growing <= self.pages.available

    def prompt_pages(self, request: Request) -> int:
        """Return how many pages a prompt needs."""
        return pages_for(len(request.submit.prompt), self.page_size)

    def admitted(self, request: Request) -> None:
        """Count a room that has just got the pages of its prompt."""
        self.promises += request.promised
        self.reads += len(request.lease)
        self.fixed_reads += 0 if request.local else len(request.lease)
        self.longest = max(self.longest, request.need_pages)
        own = request.need_pages if request.local else request.promised
        self.farthest = max(self.farthest, own)

    @property
    def _unmovable(self) -> int:
        counts = self.pages.counts()
        return counts[Owner.WRITER] + counts[Owner.QUARANTINED] + self.fixed_reads


def budget_of(
    pages: Ledger,
    page_size: int,
    host_pages: int,
    *,
    offered: Iterable[Request],
    ours: Iterable[Request],
    leaving: Iterable[Request],
    kept: int,
) -> Budget:
    """Count the rooms that have memory: ``offered`` to a writer, or ``ours`` and so movable.

    Those ``leaving`` want no more, but the engine still uses what they have.
    """
    there = Budget(pages, page_size, host_pages, kept)
    for request in leaving:
        there.reads += len(request.lease)
    for request in offered:
        there.promises += request.promised
        there.reads += len(request.lease)
        there.fixed_reads += len(request.lease)
        there.longest = max(there.longest, request.need_pages)
        there.farthest = max(there.farthest, request.promised)
    for request in ours:
        there.promises += request.promised
        there.reads += len(request.lease)
        there.longest = max(there.longest, request.need_pages)
        there.farthest = max(there.farthest, request.need_pages)
        there.growing += request.promised > 0 and not request.kept
    return there
