"""How much memory may be promised."""

from __future__ import annotations

from daemons.decode.budget import Budget, budget_of
from daemons.decode.request import Request
from daemons.kv.ledger import Ledger, Owner
from daemons.kv.prefix_tree import Lease, PrefixTree
from tests.support.cores import key, submit


def room(number: int, need: int, *, pages: int = 0, kept: int = 0, prompt: int = 1) -> Request:
    """A room of so many pages in the end, that has some already; prompts are counted in pages."""
    asked = submit(number, 4 * prompt)
    return Request(asked, key(number), 0.0, 0.0, need, pages=(0,) * pages, kept=kept)


def budget(
    size: int,
    host: int,
    *,
    offered: tuple[Request, ...] = (),
    ours: tuple[Request, ...] = (),
    quarantined: int = 0,
) -> Budget:
    """The budget of a pool in which the rooms have what they say they have."""
    pages = Ledger(size)
    for request, owner in [(r, Owner.WRITER) for r in offered] + [(r, Owner.REQUEST) for r in ours]:
        pages.take(request.key, len(request.pages), owner)
    held = pages.take(key(99), quarantined, Owner.WRITER)
    pages.move(key(99), held, Owner.WRITER, Owner.QUARANTINED)
    kept = sum(request.kept for request in ours)
    return budget_of(pages, 4, host, offered=offered, ours=ours, leaving=(), kept=kept)


def test_without_host_memory_a_room_needs_all_its_pages_free_and_promised_to_nobody() -> None:
    running = room(1, 5, pages=2)
    assert budget(10, 0, ours=(running,)).fits(room(2, 5))
    assert not budget(10, 0, ours=(running,)).fits(room(2, 6))


def test_the_host_adds_what_it_has_beyond_the_largest_room() -> None:
    running = room(1, 8, pages=2)
    assert budget(10, 12, ours=(running,)).fits(room(2, 6))  # 14 of 10 + 12 - 8
    assert not budget(10, 12, ours=(running,)).fits(room(2, 7))
    assert not budget(10, 7, ours=(running,)).fits(room(2, 3))  # it could not take room 1


def test_a_larger_room_makes_the_host_worth_less() -> None:
    running = room(1, 4, pages=2)
    assert budget(10, 10, ours=(running,)).fits(room(2, 8))  # 12 of 10 + 10 - 8
    assert not budget(10, 9, ours=(running, room(3, 1, pages=1))).fits(room(2, 8))


def test_pages_that_cannot_move_leave_place_for_the_whole_of_any_room() -> None:
    running = room(1, 8, pages=2)
    assert budget(10, 40, ours=(running,)).fits(room(2, 3, prompt=2))
    assert not budget(10, 40, ours=(running,)).fits(room(2, 3, prompt=3))
    assert not budget(10, 40, ours=(running,), quarantined=1).fits(room(2, 3, prompt=2))
    waiting = room(3, 3, pages=1)
    assert not budget(10, 40, ours=(running,), offered=(waiting,)).fits(room(2, 3, prompt=2))


def test_a_room_is_not_squeezed_by_what_it_was_offered_itself() -> None:
    waiting = room(1, 9, pages=8)
    assert budget(10, 40, offered=(waiting,)).fits(room(2, 2))


def test_each_room_that_grows_has_a_free_page_before_another_comes() -> None:
    running = tuple(room(number, 6, pages=3) for number in (1, 2, 3))
    assert not budget(12, 60, ours=running).fits(room(4, 2))  # one of 3 free pages for each
    assert budget(13, 60, ours=running).fits(room(4, 2))


def test_kept_rooms_count_with_what_they_will_need_and_not_twice() -> None:
    there = budget(10, 20, ours=(room(1, 6, kept=4), room(2, 3, pages=2)))
    assert (there.committed, there.longest, there.growing) == (9, 6, 1)


def test_an_admitted_room_counts_for_the_next_one() -> None:
    there = budget(10, 0)
    first = room(1, 6)
    assert there.fits(first)
    first.pages = there.pages.take(first.key, 1, Owner.WRITER)
    there.admitted(first)
    assert there.fits(room(2, 4))
    assert not there.fits(room(2, 5))


def reading(host: int, readers: int, *, prompt: int = 2, need: int = 3) -> tuple[Budget, Request]:
    """A pool of 10 pages, 2 of them cached, that some rooms read; and another that does too."""
    pages = Ledger(10)
    tree = PrefixTree(pages, 4)
    text = tuple(range(1, 9))
    left = pages.take(key(99), 2, Owner.REQUEST)
    lease = Lease()
    tree.extend(key(99), "", lease, text, left)
    tree.end(key(99), lease)
    rooms = [room(number, need, prompt=prompt) for number in range(1, readers + 2)]
    for one in rooms:
        one.lease = tree.lease(one.key, "", text, 2)
        one.pages = one.lease.pages
    *there, asked = rooms
    return budget_of(pages, 4, host, offered=(), ours=there, leaving=(), kept=0), asked


def test_cached_pages_that_nobody_reads_are_as_good_as_free() -> None:
    pages = Ledger(4)
    tree = PrefixTree(pages, 4)
    lease = Lease()
    tree.extend(key(9), "", lease, (1, 2, 3, 4), pages.take(key(9), 1, Owner.REQUEST))
    assert Budget(pages, 4, 0).committed == 1
    tree.end(key(9), lease)
    assert Budget(pages, 4, 0).committed == 0


def test_a_page_that_several_rooms_read_is_in_use_once() -> None:
    there, asked = reading(0, readers=7)
    assert there.committed == 2 + 7, "the pages that are read, and one more for each room"
    assert there.fits(asked)
    there, asked = reading(0, readers=8)
    assert not there.fits(asked)


def test_where_rooms_may_leave_each_takes_a_copy_of_what_it_reads_along() -> None:
    there, asked = reading(5, readers=3)
    assert there.committed == 3 * 3
    assert there.fits(asked)  # 12 of 10 + 5 - 3
    there, asked = reading(5, readers=4)
    assert not there.fits(asked)


def test_what_a_room_in_transfer_reads_cannot_move() -> None:
    there, asked = reading(40, readers=0)
    asked.pages = (*asked.pages, *there.pages.take(asked.key, 0, Owner.WRITER))
    there.admitted(asked)
    assert (there.reads, there.fixed_reads) == (2, 2)
    assert there.fits(room(9, 8))
    assert not there.fits(room(9, 9))
