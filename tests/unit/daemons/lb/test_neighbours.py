from __future__ import annotations

import asyncio
from pathlib import Path

from daemons.lb.fleet import Fleet, Pair, Worker
from daemons.lb.neighbours import GONE_S, Neighbours, Word, keep_telling
from daemons.protocol.topology import Role, State

from .conftest import until

P0 = Worker("p0", Role.PREFILL, 1, State.READY, "h", 1)
D0 = Worker("d0", Role.DECODE, 1, State.READY, "h", 2)


def test_what_others_have_is_counted_with_ours_and_never_told_as_ours() -> None:
    fleet, freed = Fleet(10.0), list[bool]()
    one = Neighbours(0, fleet, lambda: freed.append(True))
    fleet.take(Pair(P0, D0), 2, 20)
    one.hear(Word(1, [("d0", 1, 3, 30), ("d1", 1, 1, 5)]), 0.0)
    assert fleet.rooms == {("p0", 1): 2, ("d0", 1): 5, ("d1", 1): 1}
    assert fleet.tokens["d0", 1] == 50
    assert sorted(one.word().loads) == [("d0", 1, 2, 20), ("p0", 1, 2, 20)]
    assert freed == []
    one.hear(Word(1, [("d0", 1, 1, 10)]), 1.0)
    assert fleet.rooms == {("p0", 1): 2, ("d0", 1): 3}
    assert freed == [True]
    fleet.give_back(P0, 2, 20)
    fleet.give_back(D0, 2, 20)
    assert one.word().loads == []
    assert fleet.rooms == {("d0", 1): 1}


def test_who_is_silent_has_no_rooms() -> None:
    fleet = Fleet(10.0)
    one = Neighbours(0, fleet)
    one.hear(Word(1, [("d0", 1, 3, 30)]), 0.0)
    one.forget(GONE_S)
    assert fleet.rooms == {("d0", 1): 3}
    one.forget(GONE_S + 1)
    assert (fleet.rooms, fleet.tokens, one.others) == ({}, {}, {})


async def test_two_processes_hear_each_other(tmp_path: Path) -> None:
    fleets = [Fleet(10.0), Fleet(10.0)]
    ones = [Neighbours(number, fleet) for number, fleet in enumerate(fleets)]
    telling = [asyncio.create_task(keep_telling(one, tmp_path, 2)) for one in ones]
    fleets[0].take(Pair(P0, D0), 1, 10)
    await until(lambda: fleets[1].rooms == {("p0", 1): 1, ("d0", 1): 1})
    fleets[1].take(Pair(None, D0), 4, 10)
    await until(lambda: fleets[0].rooms == {("p0", 1): 1, ("d0", 1): 5})
    fleets[0].give_back(P0, 1, 10)
    fleets[0].give_back(D0, 1, 10)
    await until(lambda: fleets[1].rooms == {("d0", 1): 4})
    for task in telling:
        task.cancel()
    await asyncio.gather(*telling, return_exceptions=True)
