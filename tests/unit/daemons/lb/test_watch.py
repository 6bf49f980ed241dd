from __future__ import annotations

import asyncio
from contextlib import suppress

import aiohttp
import pytest

from daemons.lb import watch
from daemons.lb.config import StaticWorker
from daemons.lb.credits import Credits
from daemons.lb.fleet import Fleet, Pair
from daemons.lb.watch import at_listed, keep_hearing, keep_seeing
from daemons.protocol.topology import InstanceInfo, State
from daemons.runtime.phonebook import PhoneBookError, Trouble

from .conftest import FakeWorker, MakeWorker, whole

DEADLINE_S = 10.0


def listed(*workers: FakeWorker) -> list[StaticWorker]:
    return [
        StaticWorker(
            instance=worker.name, role=worker.role.value, address="127.0.0.1", port=worker.port
        )
        for worker in workers
    ]


async def test_a_silent_phone_book_leaves_the_view_and_is_asked_again(fake: MakeWorker) -> None:
    p0, d0 = await fake("p0", whole({})), await fake("d0", whole({}))
    looks = 0
    enough = asyncio.Event()

    async def look() -> list[InstanceInfo]:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise PhoneBookError(Trouble.UNREACHABLE, "silent")
        if looks == 4:
            enough.set()
        return [p0.info()] if looks >= 3 else [p0.info(), d0.info()]

    fleet = Fleet(300.0)
    seeing = asyncio.create_task(keep_seeing(fleet, look, 0.001))
    await asyncio.wait_for(enough.wait(), DEADLINE_S)
    assert list(fleet.workers) == ["p0"]
    seeing.cancel()
    with suppress(asyncio.CancelledError):
        await seeing


async def test_listed_workers_are_ready_when_their_health_is_good(
    fake: MakeWorker, http: aiohttp.ClientSession
) -> None:
    p0, d0 = await fake("p0", whole({})), await fake("d0", whole({}, 503))
    d1 = await fake("d1", whole({}))
    workers = listed(p0, d0, d1)
    await d1.stop()
    states = {info.instance: info.state for info in await at_listed(workers, http)()}
    assert states == {"p0": State.READY, "d0": State.LOST, "d1": State.LOST}
    assert p0.paths == ["/health"]


async def test_a_listed_worker_that_was_struck_is_back_after_a_good_check(
    fake: MakeWorker, http: aiohttp.ClientSession
) -> None:
    p0, d0 = await fake("p0", whole({})), await fake("d0", whole({}))
    look, fleet = at_listed(listed(p0, d0), http), Fleet(300.0)
    fleet.see(await look(), 0.0)
    fleet.strike(fleet.workers["d0"])
    assert not fleet.pairs(0.0)
    fleet.see(await look(), 1.0)
    assert len(fleet.pairs(1.0)) == 1


async def test_decodes_are_asked_for_credits_while_rooms_are_in_flight(
    fake: MakeWorker, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "CREDITS_S", 0.01)
    said = {"credits": {"tokens": 70, "rows": 3}, "instance": "d0"}
    p0, d0 = await fake("p0", whole({})), await fake("d0", whole(said))
    d1 = await fake("d1", whole({"credits": "many"}))
    fleet, credits = Fleet(300.0), Credits()
    fleet.see([p0.info(), d0.info(), d1.info()], 0.0)
    shown = {"Authorization": "Bearer x"}
    hearing = asyncio.create_task(keep_hearing(fleet, credits, http, lambda: shown))
    for _ in range(9):
        await asyncio.sleep(0)
    assert d0.paths == []  # nobody is asked while nothing is in flight
    fleet.take(Pair(p0.worker, d0.worker), 1)
    await asyncio.wait_for(d1.came.wait(), DEADLINE_S)
    async with asyncio.timeout(DEADLINE_S):
        while not credits.heard:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.001)
    assert list(credits.heard) == [("d0", 1)]
    assert credits.heard["d0", 1].tokens == 70
    assert d0.headers[0]["Authorization"] == "Bearer x"
    assert p0.paths == []
    hearing.cancel()
    with suppress(asyncio.CancelledError):
        await hearing
