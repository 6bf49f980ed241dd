"""From a client's request to a pair and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from daemons.cluster.key import ClusterKey
from daemons.lb.client import Client
from daemons.lb.config import LbConfig
from daemons.lb.dispatch import ClientGone, Lingering
from daemons.lb.fleet import Fleet, Pick, Worker
from daemons.lb.gate import Gate
from daemons.lb.leg import Leg, LegFailed
from daemons.lb.metrics import Metrics
from daemons.lb.open_requests import OpenRequests
from daemons.lb.order import CHAT, COMPLETIONS, GENERATE, BadOrder, Order, read_order
from daemons.lb.pairing import Pairing
from daemons.lb.rooms import Rooms
from daemons.lb.serving import TIMEOUT_HEADER, Asked, Serving
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.topology import Role, State
from daemons.runtime.guard import Guard, bearer
from daemons.runtime.http import invalid, read_body, url_of
from daemons.runtime.log import Logger, logger
from daemons.runtime.recorder import Recorder

SESSION_HEADER = "X-Session-ID"  # requests of one session may be kept together
PASSED_ON = (
    "Authorization",
    "X-Request-ID",
    "X-Priority",
    "traceparent",
    "tracestate",
    "Accept",
)
WARM_UP = b'{"input_ids":[0],"sampling_params":{"max_new_tokens":1,"temperature":0}}'


@dataclass(slots=True)
class Service:
    """The balancer behind its routes."""

    config: LbConfig
    fleet: Fleet
    pairing: Pairing
    gate: Gate
    rooms: Rooms
    recorder: Recorder
    session: aiohttp.ClientSession
    meeting: tuple[str, int]  # host and port of the phone book, as workers call it
    instance: str
    epoch: int
    version: str
    metrics: Metrics = field(default_factory=Metrics)
    lingering: Lingering = field(default_factory=Lingering)
    looking: set[asyncio.Task[None]] = field(default_factory=set)
    log: Logger = field(default_factory=logger)
    state: State = State.READY
    started_s: float = field(default_factory=time.monotonic)
    open: OpenRequests = field(default_factory=OpenRequests)
    guard: Guard = field(default_factory=Guard)
    key: ClusterKey | None = None
    serving: Serving = field(init=False)

    def __post_init__(self) -> None:
        self.serving = Serving(
            self.config,
            self.fleet,
            self.pairing,
            self.gate,
            self.rooms,
            self.recorder,
            self.metrics,
            self.lingering,
            self.log,
            self.instance,
            self.meeting,
            make_leg=self._leg,
            heed=self._heed,
            state=lambda: self.state,
        )

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of what is served by a pair."""
        return [
            web.post(GENERATE, self.post_order),
            web.post(COMPLETIONS, self.post_order),
            web.post(CHAT, self.post_order),
            web.get("/health_generate", self.health_generate),
        ]

    @property
    def credentials(self) -> dict[str, str]:
        """Return the headers by which workers let us in; they replace those of a client."""
        return bearer(self.key, Role.PREFILL)

    async def post_order(self, request: web.Request) -> web.StreamResponse:
        """Serve a client's request."""
        try:
            order = read_order(request.path, await read_body(request), self.config.max_items)
        except BadOrder as error:
            raise invalid(str(error)) from error
        return await self._serve(order, request)

    async def health_generate(self, request: web.Request) -> web.StreamResponse:
        """Have one token made by a real pair."""
        return await self._serve(read_order(GENERATE, WARM_UP, 1), request)

    async def _serve(self, order: Order, request: web.Request) -> web.StreamResponse:
        total_s = self._total_s(request)
        asked = Asked(
            order,
            passed_on(request) | self.credentials,
            total_s,
            who=request.remote or "",
            session=request.headers.get(SESSION_HEADER, ""),
        )
        pick = await self.serving.admitted(asked)
        client = Client(request)
        try:
            with self.open.entered():
                return await self._told(asked, pick, client)
        except ClientGone:
            return client.response  # nobody reads it

    async def _told(self, asked: Asked, pick: Pick, client: Client) -> web.StreamResponse:
        """Serve to the client's last byte, and tell the end."""
        try:
            answer = await self.serving.run(asked, pick, client)
            response = await client.finish(answer)
        except LegFailed as error:
            failed = error
        except (asyncio.CancelledError, ClientGone):
            telling = client.telling
            if client.has_all:
                telling.ended(client.response.status, None)
                raise
            if not self.open.cut:
                gone = Failure(Cause.CLIENT_DISCONNECTED, telling.stage)
                telling.ended(gone.http_status, gone)
                raise
            failed = LegFailed(Failure(Cause.INSTANCE_STOPPING, telling.stage, self.instance))
        except Exception as error:  # the request fails, not the daemon
            self.log.exception("request.broke", path=asked.order.path)
            detail = f"{type(error).__name__}: {error}"
            failed = LegFailed(Failure(Cause.INTERNAL, client.telling.stage, self.instance, detail))
        else:
            client.telling.ended(answer.status, None)
            return response
        client.telling.ended(_status(failed), failed.failure)
        return await client.refuse(failed)

    def _leg(self, worker: Worker, path: str, body: bytes, headers: Mapping[str, str]) -> Leg:
        config = self.config
        return Leg(self.session, worker, path, body, headers, config.connect_s, config.idle_s)

    def _heed(self, leg: Leg) -> None:
        """Strike a worker that refused us; look again at one whose connection was lost."""
        if leg.refused or leg.leaving:
            self.fleet.strike(leg.worker)
        elif leg.broken:
            task = asyncio.create_task(self._look_again(leg.worker))
            self.looking.add(task)
            task.add_done_callback(self.looking.discard)

    async def _look_again(self, worker: Worker) -> None:
        """Strike a worker if nobody listens any more: it was killed, not just one connection."""
        try:
            async with self.session.get(
                url_of(worker.host, worker.port) + "/health",
                timeout=aiohttp.ClientTimeout(total=self.config.connect_s),
            ):
                return
        except aiohttp.ClientConnectorError:
            self.fleet.strike(worker)
            self.log.warning("worker.struck", worker=worker.name, epoch=worker.epoch)
        except (aiohttp.ClientError, OSError):
            return  # it listens

    def pick(self) -> Pick | None:
        """Return a pair for any request; raises the Refusal that a client would get."""
        return self.serving.pick()

    def _total_s(self, request: web.Request) -> float:
        """How long this request may take: the client's own limit, within ours."""
        asked = request.headers.get(TIMEOUT_HEADER)
        if asked is None:
            return self.config.total_s
        try:
            asked_s = float(asked)
        except ValueError:
            asked_s = 0.0
        if not asked_s > 0:
            raise invalid(f"{TIMEOUT_HEADER}: {asked[:40]!r} is not a time in seconds")
        return min(asked_s, self.config.total_s)


def _status(failed: LegFailed) -> int:
    return failed.said.status if failed.said is not None else failed.failure.http_status


def passed_on(request: web.Request) -> dict[str, str]:
    """Return the headers of a request to a worker; bodies pass as they are, so uncompressed."""
    return {
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        **{name: request.headers[name] for name in PASSED_ON if name in request.headers},
    }
