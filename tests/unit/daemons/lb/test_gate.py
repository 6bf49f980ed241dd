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
        tasks.append(asyncio.create_task(gate.enter(take, LONG_S)))
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
