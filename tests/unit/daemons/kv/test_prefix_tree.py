"""Pages are found again by what they hold, kept while they are read, and go when nobody does."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemons.kv.ledger import Ledger, OutOfPages, Owner, WrongOwner
from daemons.kv.prefix_tree import STALE_SHARE, Lease, PrefixTree
from daemons.protocol.ids import RoomKey

A, B, C = RoomKey(1, 1), RoomKey(2, 1), RoomKey(3, 1)
SIZE = 2


def tree(pages: int = 8) -> tuple[Ledger, PrefixTree]:
    ledger = Ledger(pages)
    return ledger, PrefixTree(ledger, SIZE)


def run(ledger: Ledger, cached: PrefixTree, key: RoomKey, text: str, salt: str = "") -> Lease:
    """Compute a text as a room does: read what is there, compute the rest, let others read it."""
    tokens = tuple(map(ord, text))
    lease = cached.lease(key, salt, tokens, len(tokens) // SIZE)
    own = ledger.take(key, -(-len(tokens) // SIZE) - len(lease), Owner.REQUEST)
    pages = lease.pages + own
    cached.extend(key, salt, lease, tokens, pages)
    ledger.release(key, lease.others(pages), Owner.REQUEST)
    return lease


def left(ledger: Ledger, cached: PrefixTree, text: str, salt: str = "") -> None:
    cached.end(A, run(ledger, cached, A, text, salt))


def held(cached: PrefixTree, text: str, salt: str = "") -> int:
    """How many pages of a text are cached."""
    lease = cached.lease(C, salt, tuple(map(ord, text)), 99)
    found = len(lease)
    cached.end(C, lease)
    return found


def test_nothing_is_found_at_first() -> None:
    _, cached = tree()
    assert held(cached, "abcd") == 0
    assert len(cached) == 0


def test_whole_pages_of_a_text_are_found_again_and_the_rest_is_free() -> None:
    ledger, cached = tree()
    left(ledger, cached, "abcde")
    assert held(cached, "abcdef") == 2
    assert held(cached, "abxx") == 1
    assert held(cached, "xbcd") == 0
    assert ledger.counts()[Owner.CACHED] == len(cached) == 2
    assert ledger.free == 6


def test_a_page_is_found_only_behind_the_tokens_before_it() -> None:
    ledger, cached = tree()
    left(ledger, cached, "abcd")
    assert held(cached, "cd") == 0
    assert held(cached, "xxcd") == 0


def test_no_more_pages_are_read_than_were_asked_for() -> None:
    ledger, cached = tree()
    left(ledger, cached, "abcdef")
    assert len(cached.lease(B, "", tuple(map(ord, "abcdef")), 2)) == 2


def test_salts_do_not_meet() -> None:
    ledger, cached = tree()
    left(ledger, cached, "abcd", "one")
    assert held(cached, "abcd") == 0
    assert held(cached, "abcd", "two") == 0
    assert held(cached, "abcd", "one") == 2


def test_a_salt_whose_pages_are_gone_leaves_nothing() -> None:
    ledger, cached = tree(2)
    for salt in ("one", "two", "three"):
        left(ledger, cached, "abcd", salt)
    assert {salt for salt, _, _ in cached.nodes()} == {"three"}
    left(ledger, cached, "a", "short")
    assert len(cached._root.children) == 1


def test_texts_that_begin_alike_share_their_pages() -> None:
    ledger, cached = tree()
    first = run(ledger, cached, A, "abcd")
    second = run(ledger, cached, B, "abcdef")
    assert second.pages[:2] == first.pages
    assert ledger.readers(first.pages[0]) == (A, B)
    assert len(cached) == 3


def test_of_two_that_computed_the_same_the_first_one_stays() -> None:
    ledger, cached = tree()
    tokens = tuple(map(ord, "abcd"))
    leases = {key: cached.lease(key, "", tokens, 2) for key in (A, B)}
    pages = {key: ledger.take(key, 2, Owner.REQUEST) for key in (A, B)}
    for key in (A, B):
        cached.extend(key, "", leases[key], tokens, pages[key])
    assert leases[B].pages == pages[A]
    assert leases[B].others(pages[B]) == pages[B]
    assert [ledger.owner(page) for page in pages[B]] == [(Owner.REQUEST, B)] * 2


def test_what_nobody_reads_goes_when_pages_are_wanted() -> None:
    ledger, cached = tree(4)
    left(ledger, cached, "abcd")
    ledger.take(B, 3, Owner.WRITER)
    assert held(cached, "abcd") == 1, "the end of a text goes before its beginning"
    assert cached.evictions == 1


def test_the_least_recently_read_goes_first() -> None:
    ledger, cached = tree(4)
    left(ledger, cached, "abcd")
    left(ledger, cached, "efgh")
    assert held(cached, "abcd") == 2  # reads it
    ledger.take(B, 1, Owner.WRITER)
    assert (held(cached, "abcd"), held(cached, "efgh")) == (2, 1)


def test_what_is_read_stays_and_more_cannot_be_had() -> None:
    ledger, cached = tree(4)
    left(ledger, cached, "abcdef")
    reading = cached.lease(B, "", tuple(map(ord, "abcd")), 2)
    assert ledger.available == 2
    with pytest.raises(OutOfPages):
        ledger.take(C, 3, Owner.WRITER)
    ledger.take(C, 2, Owner.WRITER)
    assert held(cached, "abcdef") == 2
    cached.end(B, reading)
    assert ledger.available == 2
    with pytest.raises(WrongOwner, match="1 more pages to evict"):
        cached.evict(3)


def test_a_leaf_that_grew_is_not_evicted_before_what_grew_on_it() -> None:
    ledger, cached = tree(4)
    left(ledger, cached, "ab")
    left(ledger, cached, "abcd")
    cached.evict(1)
    assert held(cached, "abcd") == 1


def test_reading_the_same_for_ever_does_not_grow_the_memory() -> None:
    ledger, cached = tree()
    left(ledger, cached, "abcd")
    for _ in range(1000):
        assert held(cached, "abcd") == 2
    assert len(cached._unread) <= STALE_SHARE * (2 + STALE_SHARE) + 1


class Storm(RuleBasedStateMachine):
    """Any order of rooms: what is found is right, and the sums are too."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger, self.cached = tree(10)
        self.content: dict[int, tuple[str, str]] = {}  # of each page: salt, text up to its end
        self.open: list[tuple[RoomKey, Lease]] = []
        self.rooms = 0

    @rule(text=st.text("ab", max_size=9), salt=st.sampled_from(["", "s"]))
    def a_room_computes(self, text: str, salt: str) -> None:
        self.rooms += 1
        key, tokens = RoomKey(self.rooms, 1), tuple(map(ord, text))
        lease = self.cached.lease(key, salt, tokens, len(tokens))
        for at, page in enumerate(lease.pages):
            assert self.content[page] == (salt, text[: (at + 1) * SIZE])
        need = -(-len(text) // SIZE) - len(lease)
        if need > self.ledger.available:
            self.cached.end(key, lease)
            return
        pages = lease.pages + self.ledger.take(key, need, Owner.REQUEST)
        for at in range(len(lease), len(pages)):
            self.content[pages[at]] = salt, text[: (at + 1) * SIZE]
        self.cached.extend(key, salt, lease, tokens, pages)
        self.ledger.release(key, lease.others(pages), Owner.REQUEST)
        self.open.append((key, lease))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def a_room_ends(self, data: st.DataObject) -> None:
        key, lease = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.cached.end(key, lease)

    @rule(data=st.data())
    def pages_are_wanted(self, data: st.DataObject) -> None:
        key = RoomKey(999, 1)
        count = data.draw(st.integers(0, self.ledger.available))
        self.ledger.release(key, self.ledger.take(key, count, Owner.REQUEST), Owner.REQUEST)

    @invariant()
    def the_sums_are_right(self) -> None:
        self.ledger.check()
        nodes = self.cached.nodes()
        assert len(nodes) == len(self.cached) == self.ledger.counts()[Owner.CACHED]
        for salt, tokens, node in nodes:
            assert self.content[node.page] == (salt, "".join(map(chr, tokens)))
        read = {page for _, lease in self.open for page in lease.pages}
        assert len(read) == self.ledger.read


Storm.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_any_order_of_rooms_finds_only_what_is_right = Storm.TestCase
