from __future__ import annotations

import asyncio
from contextlib import suppress

import aiohttp

from daemons.lb.config import StaticWorker
from daemons.lb.fleet import Fleet
from daemons.lb.watch import at_listed, keep_seeing
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
