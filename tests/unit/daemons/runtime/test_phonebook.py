from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
import msgspec
import pytest
from aiohttp import web

from daemons.bootstrap.dp_ranks import DpRanks
from daemons.bootstrap.registry import Registry
from daemons.bootstrap.service import Service
from daemons.protocol.topology import Fingerprint, Registration, Role, State
from daemons.runtime import phonebook
from daemons.runtime.http import Site, make_app, run_site
from daemons.runtime.phonebook import PhoneBook, PhoneBookError, Trouble, keep_registered

FINGERPRINT = Fingerprint("m", "fp32", 16, 2, 2, 8)
P0 = Registration(
    instance="p0",
    role=Role.PREFILL,
    epoch=5,
    state=State.READY,
    http_host="127.0.0.1",
    http_port=1234,
    lease_s=10.0,
    version="1",
    fingerprint=FINGERPRINT,
    rank_ip="127.0.0.1",
    rank_port=4321,
)


@dataclass
class Tries:
    """What to register, asked for ``enough`` times."""

    said: Registration
    enough: int
    count: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self) -> list[Registration]:
        self.count += 1
        if self.count == self.enough:
            self.reached.set()
        return [self.said]


def new_service() -> Service:
    return Service(Registry(), DpRanks(), epoch=1, version="1", address=("127.0.0.1", 8998))


@asynccontextmanager
async def book_at(site: Site) -> AsyncIterator[PhoneBook]:
    async with aiohttp.ClientSession() as session:
        yield PhoneBook(site.url, session)


@pytest.fixture
async def service() -> Service:
    return new_service()


@pytest.fixture
async def book(service: Service) -> AsyncIterator[PhoneBook]:
    site = await run_site(service.app(), "127.0.0.1", 0)
    async with book_at(site) as book:
        yield book
    await site.close()


async def becomes(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 10)


async def test_what_is_registered_can_be_looked_up(book: PhoneBook) -> None:
    await book.register(P0)
    topology = await book.topology("p0")
    assert (topology.epoch, topology.fingerprint, topology.state) == (5, FINGERPRINT, State.READY)
    route = await book.route("p0")
    assert (route.rank_ip, route.rank_port, route.epoch) == ("127.0.0.1", 4321, 5)
    assert [info.instance for info in await book.instances()] == ["bootstrap", "p0"]


async def test_an_instance_nobody_registered_is_unknown(book: PhoneBook) -> None:
    with pytest.raises(PhoneBookError, match="no instance p9 is registered") as caught:
        await book.topology("p9")
    assert caught.value.trouble is Trouble.UNKNOWN


async def test_an_instance_whose_ranks_are_not_all_in_is_unknown_yet(book: PhoneBook) -> None:
    await book.register(
        msgspec.structs.replace(P0, shape=msgspec.structs.replace(P0.shape, attn_tp_size=2))
    )
    with pytest.raises(PhoneBookError, match="1 of 2 ranks are in") as caught:
        await book.route("p0")
    assert caught.value.trouble is Trouble.UNKNOWN


async def test_a_refusal_is_told_with_the_books_reason(book: PhoneBook) -> None:
    await book.register(P0)
    with pytest.raises(PhoneBookError, match="epoch registered 5, yours 4") as caught:
        await book.register(msgspec.structs.replace(P0, epoch=4))
    assert caught.value.trouble is Trouble.REFUSED


async def test_a_rank_and_then_the_instance_can_be_taken_out(book: PhoneBook) -> None:
    await book.register(P0)
    with pytest.raises(PhoneBookError, match="no rank dp 0 cp 0 tp 1 pp 0"):
        await book.deregister("p0", 5, [(0, 0, 1, 0)])
    await book.deregister("p0", 5, [(0, 0, 0, 0)])
    assert [info.instance for info in await book.instances()] == ["bootstrap"]


async def test_a_silent_book_is_unreachable_within_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(phonebook, "CALL_S", 0.05)

    async def sleeps(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    app = make_app()
    app.router.add_get("/instances", sleeps)
    site = await run_site(app, "127.0.0.1", 0, stop_s=0.1)
    async with book_at(site) as book:
        with pytest.raises(PhoneBookError, match="no answer in") as caught:
            await book.instances()
    await site.close()
    assert caught.value.trouble is Trouble.UNREACHABLE


async def test_an_absent_or_strange_book_is_unreachable(book: PhoneBook) -> None:
    async def strange(_: web.Request) -> web.Response:
        return web.Response(text="<html>")

    app = make_app()
    app.router.add_get("/instances", strange)
    site = await run_site(app, "127.0.0.1", 0)
    async with book_at(site) as other:
        with pytest.raises(PhoneBookError, match="answers strangely") as caught:
            await other.instances()
        assert caught.value.trouble is Trouble.UNREACHABLE
        await site.close()
        with pytest.raises(PhoneBookError) as caught:
            await other.instances()
        assert caught.value.trouble is Trouble.UNREACHABLE


async def test_registration_is_repeated_until_a_book_is_there() -> None:
    first = await run_site(make_app(), "127.0.0.1", 0)  # reserves a port, knows no routes
    registered = asyncio.Event()
    async with book_at(first) as book:
        keeping = asyncio.create_task(
            keep_registered(book, lambda: [P0], 30.0, registered=registered, jitter=lambda: 0.0)
        )
        await asyncio.sleep(0)
        await first.close()
        service = new_service()
        second = await run_site(service.app(), "127.0.0.1", first.port)
        await becomes(registered)
        assert "p0" in service.registry.lives
        await ended(keeping)
        await second.close()


async def test_a_lease_is_renewed_before_it_ends(book: PhoneBook) -> None:
    tries = Tries(P0, enough=4)
    keeping = asyncio.create_task(keep_registered(book, tries, 0.03))
    await becomes(tries.reached)
    await ended(keeping)


async def test_a_change_is_told_at_once_and_not_at_the_next_renewal(
    book: PhoneBook, service: Service
) -> None:
    said = [P0]
    changed, registered = asyncio.Event(), asyncio.Event()
    keeping = asyncio.create_task(
        keep_registered(book, lambda: said, 3600.0, changed=changed, registered=registered)
    )
    await becomes(registered)
    registered.clear()
    said[0] = msgspec.structs.replace(P0, state=State.DRAINING)
    changed.set()
    await becomes(registered)
    assert (await book.topology("p0")).state is State.DRAINING
    await ended(keeping)


async def test_a_refused_registration_is_not_called_registered(book: PhoneBook) -> None:
    await book.register(msgspec.structs.replace(P0, epoch=9))
    registered = asyncio.Event()
    tries = Tries(P0, enough=3)
    keeping = asyncio.create_task(
        keep_registered(book, tries, 10.0, registered=registered, jitter=lambda: 0.0)
    )
    await becomes(tries.reached)
    assert not registered.is_set()
    await ended(keeping)


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
