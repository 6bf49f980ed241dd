"""The balancer over HTTP: what clients ask for, and what operators look at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from daemons.lb.config import LbConfig
from daemons.lb.dispatch import ClientGone, Exchange, Lingering, Task
from daemons.lb.fleet import Fleet, Pick, Worker
from daemons.lb.leg import Answer, Leg, LegFailed, error_event
from daemons.lb.metrics import Metrics
from daemons.lb.order import CHAT, COMPLETIONS, GENERATE, BadOrder, Order, read_order
from daemons.lb.policies import Policy
from daemons.lb.rooms import Rooms
from daemons.lb.stories import ATTEMPT, Telling
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.ids import ROOM_HEX_DIGITS, room_hex
from daemons.protocol.story import WorkerStatus
from daemons.protocol.topology import Role, State
from daemons.runtime.http import (
    Refusal,
    invalid,
    json_response,
    make_app,
    metrics_response,
    url_of,
)
from daemons.runtime.log import Logger, logger
from daemons.runtime.recorder import Recorder

ASIDE_S = 2.0  # deadline of a question to a worker beside the requests
GRACE_S = 3.0  # a worker whose time is over is heard first: it knows the stage
TIMEOUT_HEADER = "X-Request-Timeout"  # seconds that the client still waits
PASSED_ON = ("Authorization", "X-Request-ID", "traceparent", "tracestate", "Accept")
WARM_UP = b'{"input_ids":[0],"sampling_params":{"max_new_tokens":1,"temperature":0}}'


@dataclass(slots=True)
class EventStream:
    """The client's end of a stream."""

    request: web.Request
    telling: Telling
    response: web.StreamResponse = field(default_factory=web.StreamResponse)

    async def begin(self) -> None:
        """Send the head; raises ClientGone."""
        self.response.headers["Content-Type"] = "text/event-stream; charset=utf-8"
        self.response.headers["Cache-Control"] = "no-cache"
        try:
            await self.response.prepare(self.request)
        except ConnectionError as error:
            raise ClientGone from error
        self.telling.began()

    async def send(self, events: bytes) -> None:
        """Send complete events; raises ClientGone."""
        try:
            await self.response.write(events)
        except ConnectionError as error:
            raise ClientGone from error


@dataclass(slots=True)
class Service:
    """The balancer behind its routes."""

    config: LbConfig
    fleet: Fleet
    policy: Policy
    rooms: Rooms
    recorder: Recorder
    session: aiohttp.ClientSession
    meeting: tuple[str, int]  # host and port of the phone book, as workers call it
    instance: str
    epoch: int
    version: str
    metrics: Metrics = field(default_factory=Metrics)
    lingering: Lingering = field(default_factory=Lingering)
    log: Logger = field(default_factory=logger)
    state: State = State.READY
    started_s: float = field(default_factory=time.monotonic)
    open_requests: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        """Return the application with all routes."""
        app = make_app(body_bytes_limit=self.config.max_body_bytes)
        app.add_routes(
            [
                web.post(GENERATE, self.post_order),
                web.post(COMPLETIONS, self.post_order),
                web.post(CHAT, self.post_order),
                web.post("/abort_request", self.abort_request),
                web.get("/v1/models", self.ask_a_worker),
                web.get("/get_model_info", self.ask_a_worker),
                web.get("/health", self.health),
                web.get("/health_generate", self.health_generate),
                web.get("/metrics", self.get_metrics),
                web.get("/status", self.status),
                web.get("/fleet", self.get_fleet),
                web.get("/rooms", self.get_rooms),
                web.get("/rooms/{room}", self.get_room),
            ]
        )
        return app

    async def post_order(self, request: web.Request) -> web.StreamResponse:
        """Serve a client's request."""
        try:
            order = read_order(request.path, await request.read(), self.config.max_items)
        except BadOrder as error:
            raise invalid(str(error)) from error
        return await self._serve(order, request)

    async def health_generate(self, request: web.Request) -> web.StreamResponse:
        """Have one token made by a real pair."""
        return await self._serve(read_order(GENERATE, WARM_UP, 1), request)

    async def _serve(self, order: Order, request: web.Request) -> web.StreamResponse:
        total_s = self._total_s(request)
        pick = self._pick()
        pair = pick.pair
        rooms = self.rooms.draw(order.rooms)
        telling = Telling(order, pick, rooms, self.recorder, self.metrics, self.log)
        stream = EventStream(request, telling)
        body = order.body(rooms, *self.meeting, pair.prefill.name)
        headers = {"X-Request-ID": room_hex(rooms[0]), **_headers(request, total_s)}
        prefill, decode = (
            self._leg(worker, order.path, body, headers) for worker in (pair.prefill, pair.decode)
        )

        def prefill_ended(task: Task) -> None:
            self.fleet.give_back(pair.prefill, len(rooms))
            telling.prefill_ended(_how(task))

        self.fleet.take(pair, len(rooms))
        self._opened()
        exchange = Exchange(
            order, prefill, decode, stream, total_s + GRACE_S, prefill_ended, self.lingering.hold
        )
        try:
            return await self._told(exchange, stream, telling)
        except ClientGone:
            return stream.response  # nobody reads it
        finally:
            for leg in (prefill, decode):
                if leg.refused:
                    self.fleet.strike(leg.worker)
            self.fleet.give_back(pair.decode, len(rooms))
            self.rooms.end(rooms)
            self._closed()

    async def _told(
        self, exchange: Exchange, stream: EventStream, telling: Telling
    ) -> web.StreamResponse:
        """Run an exchange to the client's last byte, and tell its end."""
        try:
            answer = await exchange.run()
            response = await _finished(answer, exchange, stream)
        except LegFailed as failed:
            telling.ended(_status(failed), failed.failure)
            return await _refused(failed, exchange, stream, telling.rooms[0])
        except (asyncio.CancelledError, ClientGone):
            gone = Failure(Cause.CLIENT_DISCONNECTED, exchange.stage)
            telling.ended(gone.http_status, gone)
            raise
        except Exception as error:  # the request fails, not the daemon
            self.log.exception("request.broke", path=exchange.order.path)
            bug = Failure(Cause.INTERNAL, exchange.stage, "", f"{type(error).__name__}: {error}")
            telling.ended(bug.http_status, bug)
            return await _refused(LegFailed(bug), exchange, stream, telling.rooms[0])
        telling.ended(answer.status, None)
        return response

    def _leg(self, worker: Worker, path: str, body: bytes, headers: Mapping[str, str]) -> Leg:
        config = self.config
        return Leg(self.session, worker, path, body, headers, config.connect_s, config.idle_s)

    def _pick(self) -> Pick:
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
        return self.policy.pick(pairs, self.fleet.rooms)

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

    def _opened(self) -> None:
        self.open_requests += 1
        self.idle.clear()

    def _closed(self) -> None:
        self.open_requests -= 1
        if not self.open_requests:
            self.idle.set()

    async def abort_request(self, request: web.Request) -> web.Response:
        """Pass an abort on to every worker: which of them have the request is theirs to know."""
        raw = await request.read()
        workers = list(self.fleet.workers.values())
        told = await asyncio.gather(*(self._abort_at(worker, raw) for worker in workers))
        answers = {worker.name: status for worker, status in zip(workers, told, strict=True)}
        if not any(status == 200 for status in told):
            worst = next((status for status in told if 400 <= status < 500), 502)
            raise Refusal(worst, f"no worker took the abort: {answers or 'there is none'}")
        return json_response({"workers": answers})

    async def _abort_at(self, worker: Worker, raw: bytes) -> int:
        """Return the status of one worker's answer, 0 when there is none."""
        try:
            async with self.session.post(
                url_of(worker.host, worker.port) + "/abort_request",
                data=raw,
                headers={"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=ASIDE_S),
            ) as response:
                return response.status
        except (aiohttp.ClientError, OSError):
            return 0

    async def ask_a_worker(self, request: web.Request) -> web.Response:
        """Answer with what the first ready worker answers."""
        for worker in self.fleet.workers.values():
            if not worker.is_pickable:
                continue
            try:
                async with self.session.get(
                    url_of(worker.host, worker.port) + request.path_qs,
                    headers=_headers(request, ASIDE_S),
                    timeout=aiohttp.ClientTimeout(total=ASIDE_S),
                ) as response:
                    body = await response.read()
                    return web.Response(
                        status=response.status, body=body, content_type=response.content_type
                    )
            except (aiohttp.ClientError, OSError):
                continue
        reason = self.fleet.why_no_pair(time.monotonic()) or "no worker answers"
        raise Refusal.of(Failure(Cause.LB_NO_PAIR, "dispatch", "", reason))

    async def health(self, _: web.Request) -> web.Response:
        """Say whether a request would be served now."""
        pick_would_be = self.fleet.pairs(time.monotonic())
        if self.state is not State.READY or not pick_would_be:
            self._pick()  # raises the refusal that a client would get
        return json_response({"status": "ok", "pairs": len(pick_would_be)})

    async def get_metrics(self, _: web.Request) -> web.Response:
        """Answer in Prometheus' form."""
        self.metrics.show(self.fleet, self.recorder.counts(), time.monotonic())
        return metrics_response(self.metrics.registry)

    async def status(self, _: web.Request) -> web.Response:
        """Answer own rooms and the view of the fleet in the form that workers use too."""
        return json_response(
            WorkerStatus(
                instance=self.instance,
                role=Role.LB.value,
                epoch=self.epoch,
                state=self.state.value,
                version=self.version,
                up_s=time.monotonic() - self.started_s,
                model="",
                transport="http",
                rooms=self.recorder.counts(),
                pages={},
                pages_total=0,
                rows={},
                peers={
                    worker.name: "struck" if worker.struck else worker.state.value
                    for worker in self.fleet.workers.values()
                },
                counters={
                    "requests": self.metrics.served,
                    "failures": self.metrics.failed,
                },
            )
        )

    async def get_fleet(self, _: web.Request) -> web.Response:
        """Answer the view of the fleet in full."""
        now_s = time.monotonic()
        fleet = self.fleet
        return json_response(
            {
                "seen_s_ago": None if fleet.seen_s is None else now_s - fleet.seen_s,
                "policy": self.config.policy,
                "pairs": [[pair.prefill.name, pair.decode.name] for pair in fleet.pairs(now_s)],
                "reason": "" if fleet.pairs(now_s) else fleet.why_no_pair(now_s),
                "workers": [
                    {
                        "instance": worker.name,
                        "role": worker.role.value,
                        "epoch": worker.epoch,
                        "state": worker.state.value,
                        "struck": worker.struck,
                        "url": url_of(worker.host, worker.port),
                        "rooms": fleet.rooms.get(worker.life, 0),
                    }
                    for worker in fleet.workers.values()
                ],
            }
        )

    async def get_rooms(self, _: web.Request) -> web.Response:
        """List open rooms, then the last failed and good ones."""
        return json_response({"rooms": self.recorder.rows(time.time())})

    async def get_room(self, request: web.Request) -> web.Response:
        """Answer the stories of a room, which is named by its hexadecimal digits."""
        named = request.match_info["room"]
        try:
            stories = self.recorder.stories(int(named, 16)) if len(named) <= ROOM_HEX_DIGITS else []
        except ValueError:
            raise invalid(f"room {named[:40]!r}: hexadecimal digits name a room") from None
        if not stories:
            raise Refusal(404, f"room {named} is not known here")
        return json_response({"stories": stories})


async def _finished(answer: Answer, exchange: Exchange, stream: EventStream) -> web.StreamResponse:
    if exchange.began:
        return await _closed_stream(stream)
    return web.Response(status=answer.status, body=answer.body, headers=answer.headers)


async def _refused(
    failed: LegFailed, exchange: Exchange, stream: EventStream, room: int
) -> web.StreamResponse:
    """Tell a failure as an answer of its own, or as the last event where the head is out."""
    refusal = Refusal.of(failed.failure, room=room, attempt=ATTEMPT)
    said = failed.said
    if not exchange.began:
        if said is None:
            return refusal.response()
        return web.Response(status=said.status, body=said.body, headers=said.headers)
    await stream.send(error_event(said, refusal))
    return await _closed_stream(stream)


async def _closed_stream(stream: EventStream) -> web.StreamResponse:
    try:
        await stream.response.write_eof()
    except ConnectionError as error:
        raise ClientGone from error
    return stream.response


def _status(failed: LegFailed) -> int:
    return failed.said.status if failed.said is not None else failed.failure.http_status


def _headers(request: web.Request, total_s: float) -> dict[str, str]:
    passed = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
    return {"Content-Type": "application/json", TIMEOUT_HEADER: f"{total_s:.3f}", **passed}


def _how(task: Task) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return "done" if error is None else f"failed: {error}"
