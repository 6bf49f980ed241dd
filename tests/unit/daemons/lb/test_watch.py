from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random

import aiohttp
import msgspec
import pytest

from daemons.lb import watch
from daemons.lb.config import LbConfig, StaticWorker
from daemons.lb.fleet import Fleet, Pair
from daemons.lb.pairing import pairing_of
from daemons.lb.watch import Hearing, Watch, at_listed
from daemons.protocol.story import StageTimes, Wire
from daemons.protocol.topology import InstanceInfo, State
from daemons.runtime.phonebook import PhoneBookError, Trouble

from .conftest import FakeWorker, MakeWorker, waits, whole

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
    seeing = asyncio.create_task(Watch(fleet, look).keep_seeing(0.001))
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


async def test_a_look_is_made_at_once_when_somebody_wants_one_and_shared(
    fake: MakeWorker,
) -> None:
    p0 = await fake("p0", whole({}))
    looks, go = 0, asyncio.Event()

    async def look() -> list[InstanceInfo]:
        nonlocal looks
        looks += 1
        await go.wait()
        return [p0.info()]

    seen = Watch(Fleet(300.0), look)
    wanting = [asyncio.create_task(seen.see_now()) for _ in range(5)]
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.wait_for(asyncio.gather(*wanting), DEADLINE_S) == [True] * 5
    assert (looks, list(seen.fleet.workers)) == (1, ["p0"])
    assert await seen.see_now() is False, "it was looked at this moment"


async def test_a_look_that_does_not_end_keeps_nobody_waiting_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "PROBE_S", 0.01)

    async def look() -> list[InstanceInfo]:
        await asyncio.Event().wait()
        raise AssertionError

    seen = Watch(Fleet(300.0), look)
    assert await seen.see_now() is False
    assert seen.looking is not None
    seen.looking.cancel()


def hearing(http: aiohttp.ClientSession, *infos: InstanceInfo, **settings: int) -> Hearing:
    config = LbConfig(**settings)
    fleet = Fleet(config.stale_s)
    fleet.see(infos, 0.0)
    return Hearing(
        pairing_of(config, fleet, Random(1)), http, lambda: {"Authorization": "x"}, lambda *_: None
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.001)


async def test_workers_are_asked_how_they_are_while_rooms_are_in_flight(
    fake: MakeWorker, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ASK_S", 0.01)
    said = {"credits": {"tokens": 70, "rows": 3}, "instance": "d0"}
    wires = {"d0": Wire("cma", bytes=3_000, writing=StageTimes(sum_s=1.5)), "d1": Wire()}
    told = msgspec.to_builtins({"wires": wires, "credits": {"tokens": 1}})
    p0 = await fake("p0", whole(told))
    d0, d1 = await fake("d0", whole(said)), await fake("d1", whole({"credits": "many"}))
    asks = hearing(http, p0.info(), d0.info(), d1.info())
    pairing = asks.pairing
    keeping = asyncio.create_task(asks.keep())
    for _ in range(9):
        await asyncio.sleep(0)
    assert d0.paths == []  # nobody is asked while nothing is in flight
    pairing.fleet.take(Pair(p0.worker, d0.worker), 1)
    await asyncio.wait_for(d1.came.wait(), DEADLINE_S)
    await until(lambda: bool(pairing.credits.heard and pairing.rates))
    assert list(pairing.credits.heard) == [("d0", 1)]
    assert pairing.credits.heard["d0", 1].tokens == 70
    assert pairing.rates == {("p0", "d0"): 2_000.0}
    assert d0.headers[0]["Authorization"] == "x"
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


async def test_a_worker_that_does_not_answer_several_times_in_a_row_is_lost(
    fake: MakeWorker, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ASK_S", 0.005)
    monkeypatch.setattr(watch, "PROBE_S", 0.05)
    p0, d0 = await fake("p0", whole({}, 500)), await fake("d0", waits())
    asks = hearing(http, p0.info(), d0.info(), health_misses=3)
    lost = list[str]()
    asks.lost = lambda worker, _: lost.append(worker.name)
    asks.pairing.fleet.take(Pair(p0.worker, d0.worker), 1)
    keeping = asyncio.create_task(asks.keep())
    await until(lambda: bool(lost))
    assert (set(lost), len(d0.paths)) == ({"d0"}, 3), "an answer with any status is an answer"
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping
