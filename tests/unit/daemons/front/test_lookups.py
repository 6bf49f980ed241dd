"""Questions to the phone book on behalf of ranks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from daemons.front import lookups as lookups_module
from daemons.front.lookups import LookUps, places
from daemons.protocol.causes import Cause
from daemons.protocol.generate import LookUp, RouteFailed, RouteFound, ToRank
from daemons.protocol.topology import RankRoute, Shape, State, Topology
from daemons.runtime.http import run_site
from daemons.runtime.phonebook import PhoneBook
from tests.support.fake_rank import FINGERPRINT
from tests.support.front_bench import FakeBook, phone_book


class Asking:
    """Look-ups with a phone book and a list of what the ranks were told."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.answers: asyncio.Queue[tuple[int, ToRank]] = asyncio.Queue()
        self.client = PhoneBook(url, session)
        self.look_ups = LookUps(self.client, lambda *answer: self.answers.put_nowait(answer))

    async def answer(self) -> tuple[int, ToRank]:
        async with asyncio.timeout(10):
            return await self.answers.get()

    async def cause(self) -> Cause:
        _, answer = await self.answer()
        assert isinstance(answer, RouteFailed)
        return answer.failure.cause


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[Asking]:
    async with aiohttp.ClientSession() as session:
        one = Asking(url, session)
        yield one
        await one.look_ups.close()


def know(book: FakeBook, name: str, *, epoch: int = 5, shape: Shape = Shape()) -> None:  # noqa: B008 - frozen
    book.topologies[name] = Topology(name, 5, shape, FINGERPRINT, State.READY)
    book.routes[name] = RankRoute("10.0.0.1", 4000, name, epoch)


async def test_a_rank_is_told_where_a_prefill_is_and_what_it_runs() -> None:
    async with phone_book() as book, asking(book.url) as one:
        know(book, "p0")
        one.look_ups.ask(3, LookUp("p0"))
        assert await one.answer() == (3, RouteFound("p0", 0, 5, "10.0.0.1", 4000, FINGERPRINT))


async def test_every_rank_of_a_prefill_is_told() -> None:
    async with phone_book() as book, asking(book.url) as one:
        know(book, "p0", shape=Shape(attn_tp_size=2))
        one.look_ups.ask(0, LookUp("p0"))
        answers = [(await one.answer())[1] for _ in range(2)]
        assert [answer.rank for answer in answers if isinstance(answer, RouteFound)] == [0, 1]


async def test_an_unknown_prefill_is_told_as_such() -> None:
    async with phone_book() as book, asking(book.url) as one:
        one.look_ups.ask(0, LookUp("p9"))
        assert await one.cause() is Cause.BOOTSTRAP_UNKNOWN


async def test_a_prefill_that_restarts_meanwhile_is_not_told_half_and_half() -> None:
    async with phone_book() as book, asking(book.url) as one:
        know(book, "p0", epoch=6)
        one.look_ups.ask(0, LookUp("p0"))
        _, answer = await one.answer()
        assert isinstance(answer, RouteFailed)
        assert "restarted" in answer.failure.detail


async def test_a_phone_book_that_is_not_there_is_told_as_such() -> None:
    async with asking("http://127.0.0.1:9") as one:
        one.look_ups.ask(0, LookUp("p0"))
        assert await one.cause() is Cause.BOOTSTRAP_UNREACHABLE


async def test_a_frozen_phone_book_costs_each_question_its_deadline_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookups_module, "LOOK_UP_S", 0.05)
    held = asyncio.Event()

    async def hold(_: web.Request) -> web.Response:
        await held.wait()
        return web.Response()

    app = web.Application()
    app.router.add_get("/topology", hold)
    site = await run_site(app, "127.0.0.1", 0, stop_s=0.1)
    try:
        async with asking(site.url) as one:
            names = [f"p{n}" for n in range(lookups_module.AT_ONCE * 2)]
            for name in names:
                one.look_ups.ask(0, LookUp(name))
                one.look_ups.ask(0, LookUp(name))  # the same question is asked once
            causes = [await one.cause() for _ in names]
            assert set(causes) == {Cause.BOOTSTRAP_UNREACHABLE}
            assert one.answers.empty()
            assert one.look_ups._open == {}
    finally:
        held.set()
        await site.close()


async def test_too_many_open_questions_are_answered_no_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookups_module, "WAITING_LIMIT", 0)
    async with asking("http://127.0.0.1:9") as one:
        one.look_ups.ask(0, LookUp("p0"))
        assert not one.answers.empty()


def test_tensor_parallel_ranks_count_fastest() -> None:
    found = places(Shape(attn_tp_size=2, pp_size=2))
    assert [(place["pp_rank"], place["tp_rank"]) for place in found] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
