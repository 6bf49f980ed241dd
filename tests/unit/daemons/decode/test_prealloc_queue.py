"""Rooms get memory in order, as far as the budget, rows and places go."""

from __future__ import annotations

from daemons.decode.budget import Budget
from daemons.decode.cache import Cache
from daemons.decode.memory import Memory
from daemons.decode.prealloc_queue import PreallocQueue
from daemons.decode.prefills import Prefill, Prefills, Step
from daemons.decode.request import Request
from daemons.kv.ledger import Ledger, Owner
from daemons.kv.prefix_tree import PrefixTree
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
    waiting = PreallocQueue()
    for room, need in enumerate(needs, 1):
        asked = submit(room, 4, prefill=prefill)
        waiting.rooms[key(room)] = Request(asked, key(room), 0.0, 0.0, need)
    return waiting


def admit(
    waiting: PreallocQueue,
    pages: Ledger,
    rows: Ledger | None = None,
    *,
    promised: int = 0,
    places: int = 9,
) -> list[Request]:
    budget = Budget(pages, 4, 0, promised)
    cache = Cache(pages, PrefixTree(pages, 4), 4, on=True)
    memory = Memory(pages, Ledger(0, "window page"), rows or Ledger(9), cache, 4)
    return waiting.admit(memory, budget, places, prefills())


def test_a_room_gets_the_pages_of_its_prompt_and_a_row_as_its_writers() -> None:
    pages, rows = Ledger(9), Ledger(2, "row")
    (request,) = admit(queue(3), pages, rows)
    assert (request.pages, request.row, request.peer) == ((0,), 0, P)
    assert pages.owner(0) == (Owner.WRITER, key(1))
    assert rows.owner(0) == (Owner.WRITER, key(1))


def test_pages_that_were_promised_are_not_given_away() -> None:
    pages = Ledger(9)
    assert admit(queue(3), pages, promised=7) == []
    assert len(admit(queue(3), pages, promised=6)) == 1


def test_rooms_that_are_admitted_together_do_not_get_the_same_pages_promised() -> None:
    waiting = queue(4, 4, 4)
    assert len(admit(waiting, Ledger(11))) == 2
    assert list(waiting.rooms) == [key(3)]


def test_a_room_that_does_not_fit_is_not_overtaken() -> None:
    waiting = queue(9, 1)
    assert admit(waiting, Ledger(8)) == []


def test_without_a_row_nobody_is_admitted() -> None:
    assert len(admit(queue(1, 1), Ledger(9), Ledger(1))) == 1


def test_no_more_rooms_are_admitted_than_there_are_places() -> None:
    assert len(admit(queue(1, 1, 1), Ledger(9), places=2)) == 2
    assert admit(queue(1), Ledger(9), places=0) == []


def test_rooms_of_a_prefill_that_is_not_ready_are_passed_over() -> None:
    waiting = queue(1)
    waiting.rooms |= {key(9): Request(submit(9, 4, prefill="p1"), key(9), 0.0, 0.0, 1)}
    waiting.rooms[key(8)] = Request(submit(8, 4), key(8), 0.0, 0.0, 1)
    admitted = admit(waiting, Ledger(9))
    assert [request.key for request in admitted] == [key(1), key(8)]
