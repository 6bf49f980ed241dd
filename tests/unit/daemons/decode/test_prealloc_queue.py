"""A room gets memory only when everything it may ever need is free and promised to nobody."""

from __future__ import annotations

from daemons.decode.prealloc_queue import PreallocQueue
from daemons.decode.prefills import Prefill, Prefills, Step
from daemons.decode.request import Request
from daemons.kv.ledger import Ledger, Owner
from daemons.runtime.liveness import Liveness
from daemons.runtime.peers import Peers
from tests.support.cores import D, P, buffers, key, submit


def prefills() -> Prefills:
    """p0 is ready, nobody else is."""
    peers = Peers(Liveness(1.0, 5.0))
    peers.add(P, "p.host", 8000, 0.0)
    return Prefills(buffers(D), peers, {"p0": Prefill(Step.READY, 0.0, P)})


def queue(*needs: int, prefill: str = "p0") -> PreallocQueue:
    """Rooms with a prompt of one page that need so many pages in the end."""
    waiting = PreallocQueue(4)
    for room, need in enumerate(needs, 1):
        asked = submit(room, 4, prefill=prefill)
        waiting.rooms[key(room)] = Request(asked, key(room), 0.0, 0.0, need)
    return waiting


def test_a_room_gets_the_pages_of_its_prompt_and_a_row_as_its_writers() -> None:
    pages, rows = Ledger(9), Ledger(2, "row")
    (request,) = queue(3).admit(pages, rows, 0, prefills())
    assert (request.pages, request.row, request.peer) == ([0], 0, P)
    assert pages.owner(0) == (Owner.WRITER, key(1))
    assert rows.owner(0) == (Owner.WRITER, key(1))


def test_pages_that_were_promised_are_not_given_away() -> None:
    pages = Ledger(9)
    assert queue(3).admit(pages, Ledger(9), 7, prefills()) == []
    assert len(queue(3).admit(pages, Ledger(9), 6, prefills())) == 1


def test_rooms_that_are_admitted_together_do_not_get_the_same_pages_promised() -> None:
    waiting = queue(4, 4, 4)
    assert len(waiting.admit(Ledger(11), Ledger(9), 0, prefills())) == 2
    assert list(waiting.rooms) == [key(3)]


def test_a_room_that_does_not_fit_is_not_overtaken() -> None:
    waiting = queue(9, 1)
    assert waiting.admit(Ledger(8), Ledger(9), 0, prefills()) == []


def test_without_a_row_nobody_is_admitted() -> None:
    assert len(queue(1, 1).admit(Ledger(9), Ledger(1), 0, prefills())) == 1


def test_rooms_of_a_prefill_that_is_not_ready_are_passed_over() -> None:
    waiting = queue(1)
    waiting.rooms |= {key(9): Request(submit(9, 4, prefill="p1"), key(9), 0.0, 0.0, 1)}
    waiting.rooms[key(8)] = Request(submit(8, 4), key(8), 0.0, 0.0, 1)
    admitted = waiting.admit(Ledger(9), Ledger(9), 0, prefills())
    assert [request.key for request in admitted] == [key(1), key(8)]
