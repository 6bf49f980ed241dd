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
from daemons.lb.credits import Credits
from daemons.lb.dispatch import ClientGone, Exchange, Lingering, Task
from daemons.lb.fleet import Fleet, Pick, Worker
from daemons.lb.gate import Gate, QueueIsFull, WaitedTooLong
from daemons.lb.leg import Leg, LegFailed
from daemons.lb.metrics import Metrics
from daemons.lb.open_requests import OpenRequests
from daemons.lb.order import CHAT, COMPLETIONS, GENERATE, BadOrder, Order, read_order
from daemons.lb.policies import Policy
from daemons.lb.rooms import Rooms
from daemons.lb.stories import Telling
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.ids import room_hex
from daemons.protocol.topology import Role, State
from daemons.runtime.guard import Guard, bearer
from daemons.runtime.http import Refusal, invalid, read_body, url_of
from daemons.runtime.log import Logger, logger
from daemons.runtime.recorder import Recorder

GRACE_S = 3.0  # a worker whose time is over is heard first: it knows the stage
TIMEOUT_HEADER = "X-Request-Timeout"  # seconds that the client still waits
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
    policy: Policy
    gate: Gate
    rooms: Rooms
    recorder: Recorder
    session: aiohttp.ClientSession
    meeting: tuple[str, int]  # host and port of the phone book, as workers call it
    instance: str
    epoch: int
    version: str
    credits: Credits = field(default_factory=Credits)
    metrics: Metrics = field(default_factory=Metrics)
    lingering: Lingering = field(default_factory=Lingering)
    looking: set[asyncio.Task[None]] = field(default_factory=set)
    log: Logger = field(default_factory=logger)
    state: State = State.READY
    started_s: float = field(default_factory=time.monotonic)
    open: OpenRequests = field(default_factory=OpenRequests)
    guard: Guard = field(default_factory=Guard)
    key: ClusterKey | None = None

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
        pick = await self._admitted(order.rooms, order.tokens, total_s)
        pair = pick.pair
        rooms = self.rooms.draw(order.rooms)
        telling = Telling(order, pick, rooms, self.recorder, self.metrics, self.log)
        client = Client(request, telling)
        body = order.body(rooms, *self.meeting, pair.prefill.name)
        headers = {
            "X-Request-ID": room_hex(rooms[0]),
            **passed_on(request, total_s),
            **self.credentials,
        }
        prefill, decode = (
            self._leg(worker, order.path, body, headers) for worker in (pair.prefill, pair.decode)
        )

        def prefill_ended(task: Task) -> None:
            self.fleet.give_back(pair.prefill, len(rooms))
            self.gate.opened()
            telling.prefill_ended(_how(task))

        exchange = Exchange(
            order, prefill, decode, client, total_s + GRACE_S, prefill_ended, self.lingering.hold
        )
        self.fleet.take(pair, len(rooms))
        self.credits.spend(pair.decode.life, order.tokens)
        try:
            with self.open.entered():
                return await self._told(exchange, client)
        except ClientGone:
            return client.response  # nobody reads it
        finally:
            for leg in (prefill, decode):
                self._heed(leg)
            self.fleet.give_back(pair.decode, len(rooms))
            self.gate.opened()
            self.rooms.end(rooms)

    async def _told(self, exchange: Exchange, client: Client) -> web.StreamResponse:
        """Run an exchange to the client's last byte, and tell its end."""
        telling = client.telling
        try:
            answer = await exchange.run()
            response = await client.finish(answer)
        except LegFailed as error:
            failed = error
        except (asyncio.CancelledError, ClientGone):
            if client.has_all:
                telling.ended(client.response.status, None)
                raise
            if not self.open.cut:
                gone = Failure(Cause.CLIENT_DISCONNECTED, exchange.stage)
                telling.ended(gone.http_status, gone)
                raise
            failed = LegFailed(Failure(Cause.INSTANCE_STOPPING, exchange.stage, self.instance))
        except Exception as error:  # the request fails, not the daemon
            self.log.exception("request.broke", path=exchange.order.path)
            detail = f"{type(error).__name__}: {error}"
            failed = LegFailed(Failure(Cause.INTERNAL, exchange.stage, self.instance, detail))
        else:
            telling.ended(answer.status, None)
            return response
        telling.ended(_status(failed), failed.failure)
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

    async def _admitted(self, rooms: int, tokens: int, total_s: float) -> Pick:
        """Return a pair that has place for a request; waits for one a while.

        Raises:
            Refusal: 503, and when to come back; where too many wait, at once.
        """
        config = self.config
        try:
            return await self.gate.enter(lambda: self.pick(rooms, tokens), total_s)
        except QueueIsFull:
            detail = f"no worker has a place, and {config.queue} requests are waiting"
            failure = Failure(Cause.QUEUE_FULL, "dispatch", self.instance, detail)
        except WaitedTooLong:
            detail = f"no worker had a place for {min(total_s, config.queue_s):g} s"
            failure = Failure(Cause.QUEUE_TIMEOUT, "dispatch", self.instance, detail)
        self.metrics.turned_away(failure)
        raise Refusal.of(failure, retry_after_s=config.poll_s)

    def _has_place(self, worker: Worker, rooms: int) -> bool:
        """Say whether a worker may get so many rooms more; one without any may get any number."""
        limits = {
            Role.PREFILL: self.config.max_rooms_per_prefill,
            Role.DECODE: self.config.max_rooms_per_decode,
        }
        there = self.fleet.rooms.get(worker.life, 0)
        return there == 0 or there + rooms <= limits[worker.role]

    def pick(self, rooms: int = 0, tokens: int = 0) -> Pick | None:
        """Return a pair for a request, None when no worker has a place for it now.

        Decodes that are known to lack memory for its tokens are only picked when all do.

        Raises:
            Refusal: no pair may serve.
        """
        if self.state is State.DRAINING:
            raise Refusal.of(Failure(Cause.INSTANCE_DRAINING, "dispatch", self.instance))
        now_s = time.monotonic()
        pairs = self.fleet.pairs(now_s)
        if not pairs:
            reason = self.fleet.why_no_pair(now_s)
            raise Refusal.of(
                Failure(Cause.LB_NO_PAIR, "dispatch", "", reason),
                retry_after_s=self.config.poll_s,
            )
        free = [
            pair
            for pair in pairs
            if self._has_place(pair.prefill, rooms) and self._has_place(pair.decode, rooms)
        ]
        if not free:
            return None
        well_off = [
            pair for pair in free if not self.credits.lacks(pair.decode.life, tokens, now_s)
        ]
        return self.policy.pick(well_off or free, self.fleet.rooms)

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


def passed_on(request: web.Request, total_s: float) -> dict[str, str]:
    """Return the headers of a request to a worker; bodies pass as they are, so uncompressed."""
    return {
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        TIMEOUT_HEADER: f"{max(total_s, 0.001):.3f}",  # 0 would be no time
        **{name: request.headers[name] for name in PASSED_ON if name in request.headers},
    }


def _how(task: Task) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return "done" if error is None else f"failed: {error}"
