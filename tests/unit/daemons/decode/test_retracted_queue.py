"""Who leaves the batch, and who comes back first."""

from __future__ import annotations

from daemons.decode.request import Request
from daemons.decode.retracted_queue import RetractedQueue, victim
from daemons.kv.ledger import Ledger
from tests.support.cores import key, submit


def room(number: int, *, at_s: float = 0.0, tokens: int = 1, kept: int = 2) -> Request:
    return Request(submit(number), key(number), at_s, at_s, 9, output=[0] * tokens, kept=kept)


def test_the_room_with_the_least_output_leaves_first() -> None:
    rooms = [room(1, tokens=3), room(2, tokens=2), room(3, tokens=4)]
    assert victim(rooms) is rooms[1]


def test_of_equal_ones_the_newest_leaves_first() -> None:
    rooms = [room(1, at_s=1.0), room(2, at_s=3.0), room(3, at_s=2.0)]
    assert victim(rooms) is rooms[1]
    same = [room(1), room(3), room(2)]
    assert victim(same) is same[1]


def test_the_last_room_stays() -> None:
    assert victim([room(1)]) is None
    assert victim([]) is None


def test_the_oldest_comes_back_first() -> None:
    queue = RetractedQueue(9, Ledger(9))
    for request in (room(1, at_s=2.0), room(2, at_s=1.0)):
        queue.rooms[request.key] = request
    assert queue.next() is queue.rooms[key(2)]


def test_nobody_overtakes_a_room_that_is_still_copied_out() -> None:
    queue = RetractedQueue(9, Ledger(9))
    for request in (room(1, at_s=2.0), room(2, at_s=1.0)):
        queue.rooms[request.key] = request
    queue.rooms[key(2)].in_steps = 1
    queue.rooms[key(2)].pages = (4, 5)
    assert queue.next() is None
    assert (queue.coming, queue.returning) == (2, 0)


def test_rooms_on_their_way_back_are_counted_and_not_taken_again() -> None:
    queue = RetractedQueue(9, Ledger(9))
    back = room(1, kept=0)
    back.pages, back.in_steps = (1, 2), 1
    queue.rooms[back.key] = back
    assert queue.next() is None
    assert (queue.coming, queue.returning) == (0, 1)
