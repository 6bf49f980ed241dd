"""Who owns each page."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemons.kv.ledger import Ledger, OutOfPages, Owner, WrongOwner
from daemons.protocol.ids import RoomKey

A, B = RoomKey(1, 1), RoomKey(2, 1)


def test_all_are_free_at_first() -> None:
    ledger = Ledger(4)
    assert ledger.free == 4
    assert ledger.counts() == {
        "free": 4,
        "cached": 0,
        "request": 0,
        "writer": 0,
        "quarantined": 0,
    }


def test_what_a_room_takes_is_its_own() -> None:
    ledger = Ledger(4)
    pages = ledger.take(A, 2, Owner.WRITER)
    assert [ledger.owner(page) for page in pages] == [(Owner.WRITER, A)] * 2
    assert ledger.free == 2


def test_too_many_are_refused_and_none_is_taken() -> None:
    ledger = Ledger(2, "row")
    with pytest.raises(OutOfPages, match="3 rows wanted, 2 free"):
        ledger.take(A, 3, Owner.REQUEST)
    assert ledger.free == 2


def test_a_writers_page_goes_on_to_its_room_and_back() -> None:
    ledger = Ledger(1)
    pages = ledger.take(A, 1, Owner.WRITER)
    ledger.move(A, pages, Owner.WRITER, Owner.REQUEST)
    ledger.release(A, pages, Owner.REQUEST)
    assert ledger.owner(0) == (Owner.FREE, None)
    ledger.check()


def cached(size: int = 2) -> Ledger:
    """A ledger whose page 0 is cached."""
    ledger = Ledger(size)
    ledger.move(A, ledger.take(A, 1, Owner.REQUEST), Owner.REQUEST, Owner.CACHED)
    return ledger


def test_a_cached_page_is_nobodys_and_can_be_had_when_it_is_evicted() -> None:
    ledger = cached()
    assert ledger.owner(0) == (Owner.CACHED, None)
    assert (ledger.free, ledger.available) == (1, 2)
    ledger.evict(0)
    ledger.check()
    assert (ledger.free, ledger.available) == (2, 2)


def test_a_cached_page_may_have_several_readers_and_stays_while_it_has_one() -> None:
    ledger = cached()
    ledger.read_by(A, 0)
    ledger.read_by(B, 0)
    ledger.check()
    assert (ledger.readers(0), ledger.read, ledger.available) == ((A, B), 1, 1)
    assert not ledger.left_by(A, 0)
    with pytest.raises(WrongOwner, match="is read by"):
        ledger.evict(0)
    assert ledger.left_by(B, 0)
    assert (ledger.read, ledger.available) == (0, 2)
    ledger.evict(0)
    ledger.check()


def test_nobody_reads_twice_or_leaves_what_it_did_not_read() -> None:
    ledger = cached()
    ledger.read_by(A, 0)
    with pytest.raises(WrongOwner, match="1's to read"):
        ledger.read_by(A, 0)
    with pytest.raises(WrongOwner, match="not by 0"):
        ledger.left_by(B, 0)


def test_only_cached_pages_are_read_and_none_becomes_a_rooms_own() -> None:
    ledger = cached()
    with pytest.raises(WrongOwner):
        ledger.read_by(A, 1)
    with pytest.raises(WrongOwner):
        ledger.move(B, [0], Owner.CACHED, Owner.REQUEST)


def test_cached_pages_are_asked_back_when_too_few_are_free() -> None:
    ledger, asked = cached(3), list[int]()

    def give(count: int) -> None:
        asked.append(count)
        ledger.evict(0)

    ledger.reclaim = give
    ledger.take(B, 2, Owner.WRITER)
    assert asked == []
    ledger.take(B, 1, Owner.WRITER)
    assert asked == [1]
    assert ledger.owner(0) == (Owner.WRITER, B)


def test_a_page_that_is_read_is_not_given_away() -> None:
    ledger = cached()
    ledger.read_by(A, 0)
    with pytest.raises(OutOfPages, match="2 pages wanted, 1 free"):
        ledger.take(B, 2, Owner.WRITER)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (Owner.WRITER, Owner.CACHED),
        (Owner.QUARANTINED, Owner.REQUEST),
        (Owner.QUARANTINED, Owner.WRITER),
        (Owner.REQUEST, Owner.WRITER),
        (Owner.REQUEST, Owner.QUARANTINED),
    ],
)
def test_a_step_that_no_reason_allows_raises(was: Owner, now: Owner) -> None:
    ledger = Ledger(1)
    ledger.take(A, 1, Owner.WRITER if was is Owner.QUARANTINED else was)
    if was is Owner.QUARANTINED:
        ledger.move(A, [0], Owner.WRITER, was)
    with pytest.raises(WrongOwner):
        ledger.move(A, [0], was, now)


def test_another_rooms_page_cannot_be_released() -> None:
    ledger = Ledger(2)
    pages = ledger.take(A, 1, Owner.REQUEST)
    with pytest.raises(WrongOwner, match="asked from request to free"):
        ledger.release(B, pages, Owner.REQUEST)


def test_a_page_cannot_be_released_twice() -> None:
    ledger = Ledger(2)
    pages = ledger.take(A, 1, Owner.REQUEST)
    ledger.release(A, pages, Owner.REQUEST)
    with pytest.raises(WrongOwner):
        ledger.release(A, pages, Owner.REQUEST)


def test_a_ledger_that_was_tampered_with_is_noticed() -> None:
    for spoil in (
        lambda ledger: ledger._counts.update({Owner.FREE: 1}),
        lambda ledger: ledger._owner.__setitem__(0, Owner.FREE),
        lambda ledger: ledger._holder.__setitem__(0, None),
        lambda ledger: ledger._free.give([0]),
        lambda ledger: ledger._free.take(1),
        lambda ledger: ledger._readers.update({0: [A]}),
    ):
        ledger = Ledger(3)
        ledger.take(A, 1, Owner.REQUEST)
        ledger.check()
        spoil(ledger)
        with pytest.raises(WrongOwner):
            ledger.check()


class Storm(RuleBasedStateMachine):
    """Any allowed order of steps keeps the sums right."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(12)
        self.held: list[tuple[RoomKey, tuple[int, ...], Owner]] = []

    @rule(room=st.integers(1, 5), count=st.integers(0, 5))
    def take(self, room: int, count: int) -> None:
        if count <= self.ledger.free:
            key = RoomKey(room, 1)
            self.held.append((key, self.ledger.take(key, count, Owner.WRITER), Owner.WRITER))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        key, pages, owner = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        ways = {
            Owner.WRITER: [Owner.REQUEST, Owner.QUARANTINED, Owner.FREE],
            Owner.REQUEST: [Owner.FREE],
            Owner.QUARANTINED: [Owner.FREE],
        }
        now = data.draw(st.sampled_from(ways[owner]))
        if now is Owner.FREE:
            self.ledger.release(key, pages, owner)
        else:
            self.ledger.move(key, pages, owner, now)
            self.held.append((key, pages, now))

    @invariant()
    def every_page_has_one_owner(self) -> None:
        self.ledger.check()
        held = [page for _, pages, _ in self.held for page in pages]
        assert len(held) == len(set(held)) == self.ledger.size - self.ledger.free
        for key, pages, owner in self.held:
            assert all(self.ledger.owner(page) == (owner, key) for page in pages)


Storm.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_any_order_of_steps_keeps_the_sums = Storm.TestCase
