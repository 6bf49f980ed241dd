"""From a client's request to a pair and back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from daemons.cluster.key import ClusterKey
from daemons.lb.asked import Asked
from daemons.lb.client import Client, tell
from daemons.lb.config import LbConfig
from daemons.lb.cors import cors_headers
from daemons.lb.dispatch import ClientGone, Lingering
from daemons.lb.express import Expressway
from daemons.lb.fleet import Fleet, Pick, Worker
from daemons.lb.gate import Gate
from daemons.lb.keys import ApiKeys
from daemons.lb.leg import Leg, LegFailed
from daemons.lb.metrics import Metrics
from daemons.lb.open_requests import OpenRequests
from daemons.lb.order import CHAT, COMPLETIONS, GENERATE, BadOrder, Order, read_order
from daemons.lb.pairing import Pairing
from daemons.lb.rooms import Rooms
from daemons.lb.serving import TIMEOUT_HEADER, Serving
from daemons.lb.trace import traceparent
from daemons.lb.trial import Trial
from daemons.lb.wire.call import Call
from daemons.lb.wire.pool import Pool
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.topology import Role, State
from daemons.runtime.guard import Guard, bearer
from daemons.runtime.http import Refusal, invalid, url_of
from daemons.runtime.log import Logger, logger
from daemons.runtime.recorder import Recorder

SESSION_HEADER = "X-Session-ID"  # requests of one session may be kept together
_SESSION = SESSION_HEADER.lower()
PASSED_ON = (
    "Authorization",
    "X-Request-ID",
    "X-Priority",
    "traceparent",
    "tracestate",
    "Accept",
)
_PASSED_ON = tuple((name, name.lower()) for name in PASSED_ON)
HEALTH_GENERATE = "/health_generate"
ORDERS = frozenset({("POST", GENERATE), ("POST", COMPLETIONS), ("POST", CHAT)}) | {
    ("GET", HEALTH_GENERATE)
}  # what the data path serves, by method and path
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
    session: aiohttp.ClientSession  # for questions; orders go through the pool
    meeting: tuple[str, int]  # host and port of the phone book, as workers call it
    instance: str
    epoch: int
    version: str
    config_hash: str = ""  # of the cluster file
    pool: Pool = field(default_factory=Pool)
    metrics: Metrics = field(default_factory=Metrics)
    lingering: Lingering = field(default_factory=Lingering)
    looking: set[asyncio.Task[None]] = field(default_factory=set)
    log: Logger = field(default_factory=logger)
    state: State = State.READY
    started_s: float = field(default_factory=time.monotonic)
    open: OpenRequests = field(default_factory=OpenRequests)
    guard: Guard = field(default_factory=Guard)
    key: ClusterKey | None = None
    keys: ApiKeys | None = None  # of clients
    serving: Serving = field(init=False)
    express: Expressway = field(init=False)

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
        self.express = Expressway(self.serving, self.open, self.pool, self._asked, self._go_on)

    @property
    def credentials(self) -> dict[str, str]:
        """Return the headers by which workers let us in; they replace those of a client."""
        return bearer(self.key, Role.PREFILL)

    async def serve(self, call: Call) -> None:
        """Answer an order of a client, whatever happens."""
        if call.flow.is_gone:
            return
        try:
            await self._serve(self._asked(call), call)
        except Refusal as refusal:
            await self._tell(call, refusal)
        except ClientGone:
            return  # nobody reads it
        except Exception as error:  # outermost: the request fails, not the daemon
            self.log.exception("request.broke", method=call.head.method, path=call.path)
            failure = Failure(Cause.INTERNAL, "http", "", f"{type(error).__name__}: {error}")
            await self._tell(call, Refusal.of(failure))

    def client_of(self, headers: Mapping[str, str]) -> str:
        """Return who asks, by its key; "" where clients need none.

        Raises:
            Refusal: 401, it shows no key of a client.
        """
        if self.keys is None:
            return ""
        client = self.keys.client_of(headers.get("authorization", ""))
        if client is None:
            detail = "no API key of this service: send 'Authorization: Bearer KEY'"
            failure = Failure(Cause.REQUEST_UNAUTHORIZED, "http", "", detail)
            raise Refusal(401, detail, failure=failure)
        return client

    def _headers(self, call: Call) -> dict[str, str]:
        """Return what both legs are told; a key that is for us is for nobody else."""
        headers = passed_on(call.headers)
        headers["traceparent"] = traceparent(call.headers)
        if self.keys is not None:
            headers.pop("Authorization", None)
        return headers | self.credentials

    async def _tell(self, call: Call, refusal: Refusal) -> None:
        if not call.status:
            with contextlib.suppress(ClientGone):
                await tell(call, refusal)

    def _order(self, call: Call) -> Order:
        if call.path == HEALTH_GENERATE:  # one token made by a real pair
            return read_order(GENERATE, WARM_UP, 1)
        try:
            return read_order(call.path, call.body, self.config.max_items)
        except BadOrder as error:
            raise invalid(str(error)) from error

    def _asked(self, call: Call) -> Asked:
        """Return what a client asks for; raises Refusal."""
        headers = call.headers
        if self.config.cors_origins:
            call.extra |= cors_headers(self.config.cors_origins, headers)
        if (named := headers.get("x-request-id")) is not None:
            call.extra["X-Request-ID"] = named
        call.client = self.client_of(headers)
        order, passed = self._order(call), self._headers(call)
        if call.client and self.config.salt_cache:
            order = order.salted(call.client)
        if "traceparent" in headers:
            call.extra["traceparent"] = passed["traceparent"]
        return Asked(
            order,
            passed,
            self._total_s(headers),
            who=call.client or call.remote,
            session=headers.get(_SESSION, ""),
        )

    async def _serve(self, asked: Asked, call: Call) -> None:
        with self.serving.within_limits(asked):
            pick = await self.serving.admitted(asked)
            client = Client(call)
            try:
                with self.open.entered():
                    await self._told(asked, pick, client)
            except ClientGone:
                return  # nobody reads it

    async def _go_on(
        self, asked: Asked, trial: Trial, client: Client, why: BaseException | None
    ) -> None:
        """Serve a request on whose limits and workers it is counted already."""
        try:
            with self.open.entered():
                if why is None and client.call.flow.is_gone:
                    why = ClientGone()
                elif why is None and self.open.cut:
                    why = asyncio.CancelledError()
                await self._told(asked, trial, client, why)
        except ClientGone:
            return  # nobody reads it
        finally:
            self.serving.limits.leave(asked.who, asked.order.rooms)

    async def _told(
        self, asked: Asked, first: Pick | Trial, client: Client, why: BaseException | None = None
    ) -> None:
        """Serve to the client's last byte, and tell the end."""
        try:
            answer = await self.serving.run(asked, first, client, why)
            await client.finish(answer)
        except LegFailed as error:
            failed = error
        except (asyncio.CancelledError, ClientGone):
            telling = client.telling
            if client.has_all:
                telling.ended(client.call.status, None)
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
            return
        client.telling.ended(_status(failed), failed.failure)
        await client.refuse(failed)

    def _leg(self, worker: Worker, path: str, body: bytes, fields: bytes) -> Leg:
        config = self.config
        return Leg(self.pool, worker, path, body, fields, config.connect_s, config.idle_s)

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

    def _total_s(self, headers: Mapping[str, str]) -> float:
        """How long this request may take: the client's own limit, within ours."""
        asked = headers.get(TIMEOUT_HEADER.lower())
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


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a request to a worker; bodies pass as they are, so uncompressed.

    ``headers`` are the client's, by small names (or without regard to case).
    """
    return {
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        **{name: headers[low] for name, low in _PASSED_ON if low in headers},
    }
