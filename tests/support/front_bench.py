"""A front in the test's own event loop, with a rank and a phone book that the test plays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import zmq.asyncio
from aiohttp import web

from daemons.front import model_card, tracing
from daemons.front.config import FrontConfig
from daemons.front.control_api import ControlApi
from daemons.front.desk import Desk
from daemons.front.generate_api import GenerateApi
from daemons.front.life import Life
from daemons.front.lookups import LookUps
from daemons.front.metrics import Meter
from daemons.front.openai_api import OpenAiApi
from daemons.front.pulse import Pulse
from daemons.front.ranks import Ranks
from daemons.front.rooms import OpenRooms
from daemons.protocol.topology import InstanceInfo, RankRoute, Role, State, Topology
from daemons.runtime.http import json_response, make_app, run_site
from daemons.runtime.phonebook import PhoneBook
from tests.support.fake_rank import FINGERPRINT, FakeRank, rank_ready
from tests.support.tiny_model import tiny_model

ROOM = 0x1234_5678_9ABC


@dataclass
class FakeBook:
    """A phone book with what a test puts into it."""

    instances: list[InstanceInfo]
    topologies: dict[str, Topology]
    routes: dict[str, RankRoute]
    registered: list[dict[str, Any]]
    url: str = ""
    heard: asyncio.Event = field(default_factory=asyncio.Event)  # somebody registered

    def app(self) -> web.Application:
        """Return the phone book's HTTP face."""
        app = web.Application()
        app.router.add_get("/instances", self._list)
        app.router.add_get("/topology", self._topology)
        app.router.add_get("/route", self._route)
        app.router.add_put("/route", self._register)
        app.router.add_delete("/route", self._register)
        return app

    async def _list(self, _: web.Request) -> web.Response:
        return json_response(self.instances)

    async def _topology(self, request: web.Request) -> web.Response:
        found = self.topologies.get(request.query["instance"])
        return json_response(found or {}, status=200 if found else 404)

    async def _route(self, request: web.Request) -> web.Response:
        found = self.routes.get(request.query["instance"])
        return json_response(found or {}, status=200 if found else 404)

    async def _register(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        self.registered.append({"method": request.method, **body})
        self.heard.set()
        return json_response({})


@asynccontextmanager
async def phone_book() -> AsyncIterator[FakeBook]:
    """Serve an empty phone book."""
    book = FakeBook([], {}, {}, [])
    site = await run_site(book.app(), "127.0.0.1", 0, stop_s=0.1)
    book.url = site.url
    try:
        yield book
    finally:
        await site.close()


def prefill_info(name: str, state: State = State.READY) -> InstanceInfo:
    """Return a prefill instance as the phone book lists it."""
    return InstanceInfo(name, Role.PREFILL, 5, state, "127.0.0.1", 1, "0", 1, 1, 9.0, FINGERPRINT)


def front_config(
    model_dir: Path, book_url: str, role: Role = Role.DECODE, **more: object
) -> FrontConfig:
    """Return a config with the test's settings in it."""
    settings: dict[str, object] = {
        "instance": "d0" if role is Role.DECODE else "p0",
        "role": role,
        "model_dir": str(model_dir),
        "model_name": "tiny",
        "bootstrap_url": book_url,
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": 8998,
        "rank_argv": (("rank",),),
        "epoch": 1,
        "version": "0.0.1",
        "config_hash": "abc",
    }
    return msgspec.convert({**settings, **more}, FrontConfig)


@dataclass
class Bench:
    """Everything that a test of an endpoint holds in its hands."""

    desk: Desk
    rank: FakeRank
    book: FakeBook
    http: aiohttp.ClientSession
    ranks: Ranks
    pulse: Pulse
    url: str

    def body(self, **fields: object) -> dict[str, object]:
        """Return a body with a room and whatever else is given."""
        return {"bootstrap_room": ROOM, "bootstrap_instance": "p0", **fields}


@asynccontextmanager
async def front_bench(
    directory: Path, role: Role = Role.DECODE, *, ready: bool = True, **more: object
) -> AsyncIterator[Bench]:
    """Serve a front whose rank and phone book are the test's."""
    card = model_card.load(str(tiny_model(directory / "model")))
    async with phone_book() as book, aiohttp.ClientSession() as session:
        config = front_config(directory / "model", book.url, role, **more)
        client, meter, ranks = PhoneBook(book.url, session), Meter(), Ranks(config.rank_argv)
        rooms, look_ups = OpenRooms(ranks.tell, meter), LookUps(client, ranks.tell_rank)
        ranks.listen(lambda outputs: rooms.deliver(outputs.items), look_ups.ask)
        desk = Desk(
            config, card, Life(config.instance), ranks, client, rooms, meter, time.monotonic()
        )
        if ready:
            desk.ready = [rank_ready()]
            desk.life.enter(State.READY, "")
        pulse = Pulse(desk)
        app = make_app(body_bytes_limit=config.max_body_bytes)
        tracing.add_to(app)
        for api in (GenerateApi(desk), OpenAiApi(desk), ControlApi(desk, pulse)):
            api.add_to(app)
        site = await run_site(app, "127.0.0.1", 0, stop_s=0.5)
        context = zmq.asyncio.Context()
        rank = FakeRank(context, ranks.links[0])
        try:
            async with aiohttp.ClientSession(site.url) as http:
                yield Bench(desk, rank, book, http, ranks, pulse, site.url)
        finally:
            await site.close()
            await look_ups.close()
            await desk.grammars.close()
            rank.close()
            context.term()
            await ranks.close()
