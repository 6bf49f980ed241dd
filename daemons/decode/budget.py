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
    committed: int = 0  # in use, on the host, and promised
    longest: int = 0  # M
    farthest: int = 0  # the largest n that a room has beyond what is unmovable of its own
    growing: int = 0  # rooms on the device that will want pages, one each at a time

    def fits(self, request: Request) -> bool:
        """Say whether a room may be admitted now."""
        need, prompt = request.need_pages, self.prompt_pages(request)
        overcommit = max(0, self.host_pages - max(self.longest, need))
        if self.committed + need > self.pages.size + overcommit:
            return False
        offered = 0 if request.local else prompt
        farthest = max(self.farthest, need - offered)
        if self._unmovable + offered + farthest > self.pages.size:
            return False
        return prompt + self.growing <= self.pages.free

    def prompt_pages(self, request: Request) -> int:
        """Return how many pages a prompt needs."""
        return pages_for(len(request.submit.prompt), self.page_size)

    def admitted(self, request: Request) -> None:
        """Count a room that has just got the pages of its prompt."""
        self.committed += request.need_pages
        self.longest = max(self.longest, request.need_pages)
        own = request.need_pages if request.local else request.promised
        self.farthest = max(self.farthest, own)

    @property
    def _unmovable(self) -> int:
        counts = self.pages.counts()
        return counts[Owner.WRITER] + counts[Owner.QUARANTINED]


def budget_of(
    pages: Ledger,
    page_size: int,
    host_pages: int,
    *,
    offered: Iterable[Request],
    ours: Iterable[Request],
    kept: int,
) -> Budget:
    """Count the rooms that have memory: ``offered`` to a writer, or ``ours`` and so movable."""
    there = Budget(pages, page_size, host_pages, pages.size - pages.free + kept)
    for request in offered:
        there.committed += request.promised
        there.longest = max(there.longest, request.need_pages)
        there.farthest = max(there.farthest, request.promised)
    for request in ours:
        there.committed += request.promised
        there.longest = max(there.longest, request.need_pages)
        there.farthest = max(there.farthest, request.need_pages)
        there.growing += request.promised > 0 and not request.kept
    return there
