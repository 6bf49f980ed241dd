"""Workers that tests play: real HTTP servers on loopback, each with one scripted answer."""

from __future__ import annotations

import asyncio
import collections
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from daemons.lb.app import run_lb
from daemons.lb.config import LbConfig
from daemons.lb.fleet import Fleet, Worker
from daemons.lb.gate import Gate
from daemons.lb.pairing import pairing_of
from daemons.lb.rooms import Rooms
from daemons.lb.service import Service
from daemons.lb.stories import STEPS
from daemons.lb.wire.pool import Pool
from daemons.lb.wire.site import FrontSite
from daemons.protocol.topology import InstanceInfo, Role, State
from daemons.runtime.http import Site, make_app, run_site
from daemons.runtime.recorder import Recorder

DEADLINE_S = 10.0

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


def whole(value: Any, status: int = 200, **headers: str) -> Reply:
    """Answer a JSON value at once."""

    async def reply(_: web.Request) -> web.StreamResponse:
        return web.json_response(value, status=status, headers=headers)

    return reply


def events(
    *payloads: Any,
    done: bool = True,
    before: asyncio.Event | None = None,
    between: asyncio.Event | None = None,
    after: asyncio.Event | None = None,
    cut: bool = False,
) -> Reply:
    """Answer a stream: all payloads, waiting where told, then the end mark or a cut connection."""

    async def reply(request: web.Request) -> web.StreamResponse:
        if before is not None:
            await before.wait()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for index, payload in enumerate(payloads):
            if index and between is not None:
                await between.wait()
            await response.write(b"data: " + json.dumps(payload).encode() + b"\n\n")
        if between is not None:
            await between.wait()
        if cut:
            abort(request)
            await asyncio.Event().wait()
        if done:
            await response.write(b"data: [DONE]\n\n")
        if after is not None:
            await after.wait()
        await response.write_eof()
        return response

    return reply


def waits(until: asyncio.Event | None = None, then: Reply | None = None) -> Reply:
    """Answer nothing until the event (or for ever), then as told."""

    async def reply(request: web.Request) -> web.StreamResponse:
        await (until or asyncio.Event()).wait()
        assert then is not None
        return await then(request)

    return reply


def breaks(when: asyncio.Event | None = None) -> Reply:
    """Cut the connection without an answer, as a killed worker does."""

    async def reply(request: web.Request) -> web.StreamResponse:
        if when is not None:
            await when.wait()
        abort(request)
        await asyncio.Event().wait()
        raise AssertionError

    return reply


def abort(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


def explained(cause: str, status: int, *, peer: str = "p0", stage: str = "transfer") -> Reply:
    """Answer an error as our workers word it."""
    error = {"message": f"told: {cause}", "code": status, "stage": stage, "peer": peer}
    return whole({"error": {**error, "cause": cause}}, status)


@dataclass
class FakeWorker:
    """One worker, and what it saw."""

    name: str
    role: Role
    reply: Reply
    host: str = "127.0.0.1"
    site: Site | None = None
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)  # a client closed its connection
    ended: int = 0  # requests that ended by themselves

    async def start(self) -> None:
        app = make_app()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.site = await run_site(app, self.host, 0, stop_s=0.1)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        self.came.set()
        try:
            response = await self.reply(request)
        except asyncio.CancelledError:
            self.left.set()
            raise
        self.ended += 1
        return response

    async def stop(self) -> None:
        if self.site is not None:
            await self.site.close()
            self.site = None

    @property
    def port(self) -> int:
        assert self.site is not None
        return self.site.port

    @property
    def said(self) -> dict[str, Any]:
        """The last body."""
        body: dict[str, Any] = json.loads(self.bodies[-1])
        return body

    @property
    def worker(self) -> Worker:
        return Worker(self.name, self.role, 1, State.READY, self.host, self.port)

    def info(self, **changes: Any) -> InstanceInfo:
        told: dict[str, Any] = {
            "instance": self.name,
            "role": self.role,
            "epoch": 1,
            "state": State.READY,
            "http_host": self.host,
            "http_port": self.port,
            "version": "1",
            "ranks": 1,
            "ranks_expected": 1,
            "lease_left_s": 10.0,
            **changes,
        }
        return InstanceInfo(**told)


MakeWorker = Callable[..., Awaitable[FakeWorker]]


@pytest.fixture
async def fake() -> AsyncIterator[MakeWorker]:
    """Start workers by name; a name that begins with p is a prefill."""
    made: list[FakeWorker] = []

    async def make(name: str, reply: Reply, host: str = "127.0.0.1") -> FakeWorker:
        worker = FakeWorker(name, Role.PREFILL if name[0] == "p" else Role.DECODE, reply, host)
        await worker.start()
        made.append(worker)
        return worker

    yield make
    for worker in made:
        await worker.stop()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()
    await asyncio.sleep(0)


@dataclass
class Balancer:
    """A balancer that listens, and a client beside it."""

    service: Service
    site: FrontSite
    http: aiohttp.ClientSession

    def see(self, *workers: FakeWorker, now_s: float | None = None, **changes: Any) -> None:
        now = asyncio.get_running_loop().time() if now_s is None else now_s
        self.service.fleet.see([worker.info(**changes) for worker in workers], now)

    def post(self, path: str, body: Any, **how: Any) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(self.site.url + path, data=raw, **how)

    def get(self, path: str, **how: Any) -> Any:
        return self.http.get(self.site.url + path, **how)


MakeBalancer = Callable[..., Awaitable[Balancer]]


@pytest.fixture(params=["cold", "warm"])
async def balancer(
    http: aiohttp.ClientSession, request: pytest.FixtureRequest
) -> AsyncIterator[MakeBalancer]:
    """Start a balancer that knows the workers given; keywords are settings.

    A cold one has no connection yet, so that tasks serve; a warm one has some to each worker, so
    that requests are served without, and handed to a task when something goes wrong.
    """
    made: list[Balancer] = []
    async with aiohttp.ClientSession() as upstream:

        async def make(*workers: FakeWorker, **settings: Any) -> Balancer:
            config = LbConfig(**settings)
            fleet = Fleet(config.stale_s)
            service = Service(
                config=config,
                fleet=fleet,
                pairing=pairing_of(config, fleet, random.Random(7)),
                gate=Gate(config.queue, config.queue_s),
                rooms=Rooms(random.Random(7).getrandbits),
                recorder=Recorder("lb", "lb", STEPS),
                session=upstream,
                meeting=("127.0.0.1", 8998),
                instance="lb",
                epoch=1,
                version="1",
            )
            balancer = Balancer(service, await run_lb(service, "127.0.0.1", 0), http)
            balancer.see(*workers)
            made.append(balancer)
            for worker in workers if request.param == "warm" else ():
                await warm(service.pool, worker)
            return balancer

        yield make
        for balancer in made:
            await balancer.site.close()
            await balancer.service.lingering.close()
            balancer.service.pool.close()


async def warm(pool: Pool, worker: FakeWorker, lines: int = 3) -> None:
    """Open connections to a worker, as earlier requests would have left them."""
    if worker.site is None:
        return
    opened = [await pool.line(worker.host, worker.port, DEADLINE_S) for _ in range(lines)]
    kept = pool.idle.setdefault((worker.host, worker.port), collections.deque())
    kept.extend((pool.clock(), line) for line in opened)


async def happens(event: asyncio.Event) -> None:
    """Wait for an event, but not for ever."""
    await asyncio.wait_for(event.wait(), DEADLINE_S)


async def until(what: Callable[[], object]) -> None:
    """Wait until ``what`` is true, but not for ever."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if what():
                return
            await asyncio.sleep(0.002)


async def idle(balancer: Balancer) -> None:
    """Wait until the balancer has no open request; then it must have no load."""
    if balancer.service.open:
        await happens(balancer.service.open.idle)
    for task in list(balancer.service.lingering.tasks):
        await asyncio.wait({task}, timeout=DEADLINE_S)
    await asyncio.sleep(0)
    assert dict(balancer.service.fleet.rooms) == {}
    assert balancer.service.rooms.live == set()
    assert sum(balancer.service.recorder.counts().values()) == 0


async def read(response: aiohttp.ClientResponse) -> tuple[int, Any]:
    """Return status and JSON value."""
    return response.status, await response.json()


@pytest.fixture
async def p0(fake: MakeWorker) -> FakeWorker:
    return await fake("p0", whole({"text": "prefill"}))


@pytest.fixture
async def d0(fake: MakeWorker) -> FakeWorker:
    return await fake("d0", whole({"text": "decode"}))
