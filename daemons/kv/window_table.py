"""Where the window pages of a room's text are: a table that turns round.

A page that no coming token sees is used again for the pages that come, but not before they need
it. Pages that are only read are never used again; they leave the table, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from daemons.kv.ledger import OutOfPages
from daemons.kv.runs import pages_for
from daemons.kv.window_pool import WindowPool


@dataclass(slots=True)
class WindowTable:
    """The window pages of one room.

    Attributes:
        first: the text page that ``pages`` begins with.
        pages: of text pages ``first``, ``first + 1``, …
        spare: the room's own, of no text page yet.
        read: those of ``pages`` that the room does not own.
    """

    first: int = 0
    pages: tuple[int, ...] = ()
    spare: tuple[int, ...] = ()
    read: set[int] = field(default_factory=set)

    @property
    def end(self) -> int:
        """The text page behind the last one."""
        return self.first + len(self.pages)

    @property
    def own(self) -> tuple[int, ...]:
        """All that are the room's."""
        return (*(page for page in self.pages if page not in self.read), *self.spare)

    def part(self, begin: int, end: int) -> tuple[int, ...]:
        """Return the window pages of text pages ``begin .. end - 1``, all of which are here."""
        return self.pages[max(0, begin - self.first) : max(0, end - self.first)]

    def cover(self, pool: WindowPool, start: int, end: int) -> None:
        """Have a page for every token in ``start .. end - 1``, and for all that these see.

        Raises:
            OutOfPages: the room has too few for such a step; nothing has changed.
        """
        missing = pages_for(end, pool.windows.page_size) - self.end
        if missing <= 0:
            return
        turned, spare = 0, list(self.spare)
        unseen = min(pool.first_needed(start), self.end) - self.first
        while len(spare) < missing and turned < unseen:
            if self.pages[turned] not in self.read:
                spare.append(self.pages[turned])
            turned += 1
        if len(spare) < missing:
            raise OutOfPages(f"{missing} window pages wanted, the room has {self}")
        self.pages = (*self.pages[turned:], *spare[:missing])
        self.spare = tuple(spare[missing:])
        self.first += turned


def landed_at(first: int, end: int, pages: Sequence[int]) -> WindowTable:
    """Return a table whose ``pages`` begin with text pages ``first .. end - 1``; others wait."""
    count = end - first
    return WindowTable(first, tuple(pages[:count]), tuple(pages[count:]))
