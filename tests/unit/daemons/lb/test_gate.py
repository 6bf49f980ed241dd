"""Requests wait in order, not for long, and not too many of them."""

from __future__ import annotations

import asyncio

import pytest

from daemons.lb.gate import Gate, QueueIsFull, WaitedTooLong

LONG_S = 10.0


class Places:
    """Places that are taken one by one."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.taken: list[str] = []

    def take(self, who: str) -> str | None:
        if not self.free:
            return None
        self.free -= 1
        self.taken.append(who)
        return who


async def entering(gate: Gate, places: Places, *names: str) -> list[asyncio.Task[str]]:
    tasks = []
    for name in names:
        take = lambda name=name: places.take(name)  # noqa: E731
        tasks.append(asyncio.create_task(gate.enter(take, LONG_S, name[0])))
        await asyncio.sleep(0)
    return tasks


async def test_who_finds_a_place_does_not_wait() -> None:
    assert await Gate(0, LONG_S).enter(lambda: "taken", LONG_S) == "taken"


async def test_places_go_to_those_who_wait_in_their_order() -> None:
    gate, places = Gate(9, LONG_S), Places(0)
    tasks = await entering(gate, places, "a", "b", "c")
    places.free = 2
    gate.opened()
    assert await asyncio.wait_for(asyncio.gather(*tasks[:2]), LONG_S) == ["a", "b"]
    assert not tasks[2].done()
    assert len(gate.waiting) == 1
    tasks[2].cancel()


async def test_nobody_overtakes_those_who_wait() -> None:
    gate, places = Gate(9, LONG_S), Places(0)
    (first,) = await entering(gate, places, "a")
    places.free = 1
    (second,) = await entering(gate, places, "b")
    gate.opened()
    assert await asyncio.wait_for(first, LONG_S) == "a"
    places.free = 1
    gate.opened()
    assert await asyncio.wait_for(second, LONG_S) == "b"


async def test_a_place_that_nobody_told_of_is_found_too() -> None:
    gate, places = Gate(9, LONG_S), Places(0)
    (task,) = await entering(gate, places, "a")
    places.free = 1
    assert await asyncio.wait_for(task, LONG_S) == "a"


async def test_too_many_are_refused_at_once() -> None:
    gate, places = Gate(1, LONG_S), Places(0)
    (first,) = await entering(gate, places, "a")
    with pytest.raises(QueueIsFull):
        await gate.enter(lambda: places.take("b"), LONG_S)
    first.cancel()


@pytest.mark.parametrize(("own_s", "theirs_s"), [(0.01, LONG_S), (LONG_S, 0.01)])
async def test_nobody_waits_for_longer_than_the_queue_and_the_client_allow(
    own_s: float, theirs_s: float
) -> None:
    gate = Gate(1, own_s)
    with pytest.raises(WaitedTooLong):
        await gate.enter(lambda: None, theirs_s)
    assert not gate.waiting


async def test_who_leaves_or_breaks_makes_way_for_the_next() -> None:
    gate, places = Gate(9, LONG_S), Places(0)
    first, second = await entering(gate, places, "a", "b")
    first.cancel()
    places.free = 1
    assert await asyncio.wait_for(second, LONG_S) == "b"

    def broken() -> str | None:
        raise KeyError("no pair")

    with pytest.raises(KeyError):
        await gate.enter(broken, LONG_S)
    assert not gate.waiting


async def served(gate: Gate, places: Places, tasks: list[asyncio.Task[str]]) -> list[str]:
    """Free one place after the other until all are served."""
    for n in range(len(tasks)):
        places.free = 1
        gate.opened()
        async with asyncio.timeout(LONG_S):
            while len(places.taken) <= n:  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return places.taken


async def test_clients_take_turns_however_many_one_of_them_sends() -> None:
    gate, places = Gate(99, LONG_S), Places(0)
    tasks = await entering(gate, places, "a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert await served(gate, places, tasks) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


async def test_who_comes_late_is_not_ahead_of_those_who_had_fewer_turns() -> None:
    gate, places = Gate(99, LONG_S), Places(0)
    first = await entering(gate, places, "a1", "a2", "a3")
    places.free = 2
    gate.opened()
    await asyncio.wait_for(asyncio.gather(*first[:2]), LONG_S)
    places.taken.clear()
    rest = [first[2], *await entering(gate, places, "b1", "b2")]
    assert await served(gate, places, rest) == ["a3", "b1", "b2"]


async def test_in_a_full_queue_the_greediest_client_gives_way() -> None:
    gate, places = Gate(3, LONG_S), Places(0)
    tasks = await entering(gate, places, "a1", "a2", "a3", "b1")
    with pytest.raises(QueueIsFull):
        await tasks[2]
    with pytest.raises(QueueIsFull):
        await gate.enter(lambda: None, LONG_S, "b")
    assert await served(gate, places, [*tasks[:2], tasks[3]]) == ["a1", "b1", "a2"]
    assert not gate.waiting


async def test_a_single_client_is_refused_at_once_when_the_queue_is_full_of_its_own() -> None:
    gate, places = Gate(2, LONG_S), Places(0)
    tasks = await entering(gate, places, "a1", "a2")
    with pytest.raises(QueueIsFull):
        await gate.enter(lambda: None, LONG_S, "a")
    for task in tasks:
        task.cancel()
