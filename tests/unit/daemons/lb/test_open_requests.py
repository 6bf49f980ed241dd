from __future__ import annotations

import asyncio

import pytest

from daemons.lb.open_requests import OpenRequests


async def test_a_request_that_breaks_is_not_open_any_more() -> None:
    requests = OpenRequests()

    async def breaks() -> None:
        with requests.entered():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await breaks()
    assert (len(requests), requests.idle.is_set()) == (0, True)


async def test_idle_is_told_when_the_last_one_ends() -> None:
    requests, go = OpenRequests(), [asyncio.Event(), asyncio.Event()]

    async def serve(until: asyncio.Event) -> None:
        with requests.entered():
            await until.wait()

    tasks = [asyncio.create_task(serve(event)) for event in go]
    await asyncio.sleep(0)
    assert len(requests) == 2
    go[0].set()
    await tasks[0]
    assert not requests.idle.is_set()
    go[1].set()
    await tasks[1]
    assert requests.idle.is_set()


async def test_cutting_cancels_all_that_are_open() -> None:
    requests = OpenRequests()

    async def serve() -> None:
        with requests.entered():
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    assert not requests.cut
    requests.cut_all()
    await asyncio.wait({task}, timeout=10)
    assert task.cancelled()
    assert requests.cut
