"""A prefix can be gone on from only where the window pages of its end are."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemons.kv.ledger import Ledger, Owner, WrongOwner
from daemons.kv.prefix_tree import Lease, PrefixTree
from daemons.kv.window import Windows
from daemons.kv.window_cache import WindowCache
from daemons.kv.window_pool import WindowPool
from daemons.kv.window_table import WindowTable
from daemons.protocol.ids import RoomKey

A, B = RoomKey(1, 1), RoomKey(2, 1)
SIZE, SEEN = 2, 4  # tokens of a page, and of the window: the last two pages of a prefix, or three


class Prefill:
    """Both ledgers of a prefill with its tree, and rooms that hold their memory."""

    def __init__(self, pages: int = 20, windows: int = 8) -> None:
        self.pool = WindowPool(Windows(SIZE, (None, SEEN)), windows)
        self.pages, self.windows = Ledger(pages), Ledger(windows, "window page")
        self.cache = WindowCache(self.windows, self.pool)
        self.tree = PrefixTree(self.pages, SIZE, self.cache)

    def begin(self, key: RoomKey, text: str, own: int = 3) -> Room | None:
        tokens = tuple(map(ord, text))
        lease = self.tree.lease(key, "", tokens, max(0, len(tokens) - 1) // SIZE)
        need = -(-len(tokens) // SIZE) - len(lease)
        own = min(own, need)
        if need > self.pages.available or own > self.windows.available:
            self.tree.end(key, lease)
            return None
        pages = lease.pages + self.pages.take(key, need, Owner.REQUEST)
        read = tuple(node.window for node in lease.windows)
        spare = self.windows.take(key, own, Owner.REQUEST)
        return Room(self, key, tokens, lease, pages, read, spare)


class Room:
    """A room that computes its text token by token, and leaves what it has."""

    def __init__(
        self,
        prefill: Prefill,
        key: RoomKey,
        tokens: tuple[int, ...],
        lease: Lease,
        pages: tuple[int, ...],
        read: tuple[int, ...],
        spare: tuple[int, ...],
    ) -> None:
        self.prefill, self.key, self.tokens, self.pages = prefill, key, tokens, pages
        self.lease, self.cached = lease, len(lease)
        self.table = WindowTable(len(lease) - len(read), read, spare, set(read))
        for at in range(len(lease) * SIZE, len(tokens)):
            self.table.cover(prefill.pool, at, at + 1)

    def keep(self) -> None:
        self.prefill.tree.extend(self.key, "", self.lease, self.tokens, self.pages)
        self.prefill.cache.keep(self.key, self.lease, self.table)

    def end(self) -> None:
        self.prefill.pages.release(self.key, self.lease.others(self.pages), Owner.REQUEST)
        self.prefill.windows.release(self.key, self.table.own, Owner.REQUEST)
        self.prefill.tree.end(self.key, self.lease)


def left(prefill: Prefill, text: str, own: int = 3) -> int:
    """Let a room come and go; returns how many pages of its text it found."""
    room = prefill.begin(A, text, own)
    assert room is not None
    room.keep()
    room.end()
    return room.cached


def test_the_end_of_an_earlier_text_can_be_gone_on_from_and_its_middle_cannot() -> None:
    prefill = Prefill()
    left(prefill, "abcdefghij")
    assert len(prefill.cache) == 3
    assert left(prefill, "abcdefghijklm") == 5
    assert left(prefill, "abcdefxx") == 0, "its window pages were used again"


def test_who_has_more_window_pages_leaves_more_places_to_go_on_from() -> None:
    prefill = Prefill()
    left(prefill, "abcdefghij", own=5)
    assert left(prefill, "abcdefxx") == 3
    assert left(prefill, "abxx") == 1


def test_a_window_page_goes_by_itself_and_its_node_stays() -> None:
    prefill = Prefill(windows=4)
    left(prefill, "abcdef")
    prefill.windows.release(B, prefill.windows.take(B, 2, Owner.REQUEST), Owner.REQUEST)
    assert (len(prefill.cache), len(prefill.tree), prefill.cache.evictions) == (2, 3, 1)


def test_a_window_page_goes_with_its_node() -> None:
    prefill = Prefill(pages=3)
    left(prefill, "abcdef")
    prefill.pages.release(B, prefill.pages.take(B, 2, Owner.REQUEST), Owner.REQUEST)
    assert (len(prefill.tree), len(prefill.cache)) == (1, 1)
    assert prefill.windows.counts()[Owner.CACHED] == 1


def test_what_is_read_does_not_go() -> None:
    prefill = Prefill(windows=5)
    left(prefill, "abcd")
    room = prefill.begin(B, "abcdef")
    assert room is not None
    assert (room.cached, len(room.lease.windows)) == (2, 2)
    assert prefill.windows.available == 2
    with pytest.raises(WrongOwner, match="all others are read"):
        prefill.cache.evict(1)


def test_of_the_same_page_the_first_that_came_stays() -> None:
    prefill = Prefill(windows=6)
    one, other = prefill.begin(A, "abcd"), prefill.begin(B, "abcd")
    assert one is not None
    assert other is not None
    one.keep()
    other.keep()
    other.end()
    one.end()
    assert prefill.windows.counts()[Owner.CACHED] == 2
    assert prefill.windows.free == 4


class Storm(RuleBasedStateMachine):
    """Any order of rooms: what a room begins with is what it sees, and the sums are right."""

    def __init__(self) -> None:
        super().__init__()
        self.prefill = Prefill(12, 9)
        self.content: dict[int, str] = {}  # of each window page: the text up to its end
        self.rooms: list[Room] = []
        self.count = 0

    @rule(text=st.text("ab", min_size=1, max_size=12), own=st.integers(3, 6))
    def a_room_computes(self, text: str, own: int) -> None:
        self.count += 1
        room = self.prefill.begin(RoomKey(self.count, 1), text, own)
        if room is None:
            return
        start = room.cached * SIZE
        seen = range(max(0, start - SEEN + 1) // SIZE, room.cached)
        read = [node.window for node in room.lease.windows]
        assert [self.content[page] for page in read] == [text[: (at + 1) * SIZE] for at in seen]
        for at in range(room.table.first, room.table.end):
            page = room.table.pages[at - room.table.first]
            if page not in room.table.read:
                self.content[page] = text[: (at + 1) * SIZE]
        room.keep()
        self.rooms.append(room)

    @precondition(lambda self: self.rooms)
    @rule(data=st.data())
    def a_room_ends(self, data: st.DataObject) -> None:
        self.rooms.pop(data.draw(st.integers(0, len(self.rooms) - 1))).end()

    @rule(data=st.data())
    def window_pages_are_wanted(self, data: st.DataObject) -> None:
        windows = self.prefill.windows
        count = data.draw(st.integers(0, windows.available))
        windows.release(B, windows.take(B, count, Owner.REQUEST), Owner.REQUEST)

    @rule(data=st.data())
    def pages_are_wanted(self, data: st.DataObject) -> None:
        pages = self.prefill.pages
        count = data.draw(st.integers(0, pages.available))
        pages.release(B, pages.take(B, count, Owner.REQUEST), Owner.REQUEST)

    @invariant()
    def the_sums_are_right(self) -> None:
        prefill = self.prefill
        prefill.pages.check()
        prefill.windows.check()
        there = [
            (tokens, node.window) for _, tokens, node in prefill.tree.nodes() if node.window >= 0
        ]
        assert len(there) == len(prefill.cache) == prefill.windows.counts()[Owner.CACHED]
        for tokens, page in there:
            assert self.content[page] == "".join(map(chr, tokens))
        read = {node.window for room in self.rooms for node in room.lease.windows}
        assert len(read) == prefill.windows.read


Storm.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_any_order_of_rooms_finds_only_what_it_can_go_on_from = Storm.TestCase
