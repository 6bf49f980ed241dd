"""The phone book over HTTP.

``GET /route`` with all four ranks -1 answers an instance's sizes under SGLang's field names, so
that its tools can read them; ``GET /topology`` is the plain way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, NoReturn

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge

from daemons.bootstrap.chronicle import Chronicle
from daemons.bootstrap.dp_ranks import DpRanks
from daemons.bootstrap.registry import (
    Change,
    Conflict,
    Coords,
    Invalid,
    NotReady,
    Registry,
    Unknown,
)
from daemons.cluster.load import BOOTSTRAP_NAME
from daemons.protocol.ids import Room
from daemons.protocol.topology import Index, InstanceInfo, Registration, Role, State, Topology
from daemons.runtime import systemd
from daemons.runtime.guard import Guard
from daemons.runtime.http import (
    Refusal,
    invalid,
    json_response,
    make_app,
    metrics_response,
    read_json,
)
from daemons.runtime.log import Logger, logger
from daemons.runtime.phonebook import Deregistration

BODY_BYTES_LIMIT = 1 << 20
TICK_S = 1.0
OWN_LEASE_S = 3600.0  # the book does not lose itself
SENTINEL = Coords(-1, -1, -1, -1)
STATUS_OF = {Invalid: 400, Unknown: 404, Conflict: 409, NotReady: 503}
QUIET = frozenset({Change.RENEWED})


class DpRank(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /register_dp_rank``."""

    bootstrap_room: Room
    dp_rank: Index


class DpRankQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /query_dp_ranks``."""

    bootstrap_rooms: Annotated[list[Room], msgspec.Meta(max_length=10_000)]


@dataclass(slots=True)
class Service:
    """The registry behind its routes."""

    registry: Registry
    dp_ranks: DpRanks
    epoch: int
    version: str
    address: tuple[str, int]  # as others call us
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    log: Logger = field(default_factory=logger)
    chronicle: Chronicle = field(default_factory=Chronicle)
    metrics: Metrics = field(default_factory=lambda: Metrics())
    guard: Guard = field(default_factory=Guard)

    def app(self) -> web.Application:
        """Return the application with all routes."""
        app = make_app(body_bytes_limit=BODY_BYTES_LIMIT, guard=self.guard.middleware)
        app.add_routes(
            [
                web.put("/route", self.put_route),
                web.get("/route", self.get_route),
                web.delete("/route", self.delete_route),
                web.get("/topology", self.get_topology),
                web.get("/instances", self.get_instances),
                web.get("/events", self.get_events),
                web.post("/register_dp_rank", self.register_dp_rank),
                web.post("/query_dp_ranks", self.query_dp_ranks),
                web.get("/health", self.health),
                web.get("/metrics", self.get_metrics),
            ]
        )
        return app

    async def put_route(self, request: web.Request) -> web.Response:
        """Take in or renew one rank."""
        said = await read_json(request, Registration)
        try:
            change = self.registry.put(said, self.clock())
        except (Invalid, Conflict, NotReady) as error:
            self.metrics.registrations.labels("refused").inc()
            self.log.warning(
                "registration.refused",
                of=said.instance,
                epoch=said.epoch,
                sender=request.remote,
                reason=str(error),
            )
            self.chronicle.lost("refused", said.instance, self.wall(), str(error))
            _refuse(error)
        self.metrics.registrations.labels(change.value).inc()
        if change not in QUIET:
            self.chronicle.heard(change.value, said, self.wall())
            self.log.info(
                f"instance.{change.value}",
                of=said.instance,
                role_of=said.role.value,
                epoch=said.epoch,
                state=said.state.value,
                http=f"{said.http_host}:{said.http_port}",
            )
        return web.Response(text="OK")

    async def get_route(self, request: web.Request) -> web.Response:
        """Answer one rank's inbox, or the sizes when all four ranks are -1."""
        coords = Coords(
            dp=_int(request, "prefill_dp_rank"),
            cp=_int(request, "prefill_cp_rank"),
            tp=_int(request, "target_tp_rank"),
            pp=_int(request, "target_pp_rank"),
        )
        instance = request.query.get("instance")
        try:
            if coords == SENTINEL:
                return json_response(sglang_sizes(self.registry.topology(instance, self.clock())))
            return json_response(self.registry.route(instance, coords, self.clock()))
        except (Unknown, Conflict, NotReady) as error:
            _refuse(error)

    async def delete_route(self, request: web.Request) -> web.Response:
        """Take out an instance, or some of its ranks."""
        gone = await read_json(request, Deregistration)
        ranks = None if gone.ranks is None else [Coords(*rank) for rank in gone.ranks]
        try:
            self.registry.delete(gone.instance, gone.epoch, ranks)
        except (Unknown, Conflict) as error:
            _refuse(error)
        self.log.info("instance.deregistered", of=gone.instance, epoch=gone.epoch)
        self.chronicle.lost("deregistered", gone.instance, self.wall())
        return web.Response(text="OK")

    async def get_topology(self, request: web.Request) -> web.Response:
        """Answer what an instance is made of."""
        try:
            return json_response(
                self.registry.topology(request.query.get("instance"), self.clock())
            )
        except (Unknown, Conflict, NotReady) as error:
            _refuse(error)

    async def get_instances(self, _: web.Request) -> web.Response:
        """List every instance that registered, lost ones included, and this one."""
        listed = self.registry.instances(self.clock(), self.wall())
        return json_response([self.own_row(), *listed])

    async def get_events(self, request: web.Request) -> web.Response:
        """Answer what happened to instances after Unix time ``since``, and what time it is here."""
        given = request.query.get("since", "0")
        try:
            since_s = float(given)
        except ValueError:
            raise invalid(f"since={given[:40]!r} is no time", stage="lookup") from None
        events = list(self.chronicle.since(since_s))
        return json_response({"now_s": self.wall(), "events": events})

    def own_row(self) -> InstanceInfo:
        """Return this life of the book; a new epoch tells readers that it began anew."""
        host, port = self.address
        return InstanceInfo(
            instance=BOOTSTRAP_NAME,
            role=Role.BOOTSTRAP,
            epoch=self.epoch,
            state=State.READY,
            http_host=host,
            http_port=port,
            version=self.version,
            ranks=1,
            ranks_expected=1,
            lease_left_s=OWN_LEASE_S,
            since_s=self.epoch / 1000,
        )

    async def register_dp_rank(self, request: web.Request) -> web.Response:
        """Remember which data-parallel rank took a room."""
        said = await read_json(request, DpRank)
        self.dp_ranks.put(said.bootstrap_room, said.dp_rank, self.clock())
        return web.Response(text="OK")

    async def query_dp_ranks(self, request: web.Request) -> web.Response:
        """Answer the ranks of those rooms that are known."""
        asked = await read_json(request, DpRankQuery)
        known = self.dp_ranks.get(asked.bootstrap_rooms, self.clock())
        return json_response({str(room): rank for room, rank in known.items()})

    async def health(self, _: web.Request) -> web.Response:
        """Say that this process answers; it depends on nobody else."""
        return web.Response(text="OK")

    async def get_metrics(self, _: web.Request) -> web.Response:
        """Answer in Prometheus' form."""
        self.metrics.show(self)
        return metrics_response(self.metrics.registry)

    def tick(self) -> None:
        """Let time do its work, and tell it."""
        now_s = self.clock()
        self.dp_ranks.tick(now_s)
        for name, change in self.registry.tick(now_s):
            self.log.warning(f"instance.{change.value}", of=name)
            self.chronicle.lost(change.value, name, self.wall())

    async def keep_ticking(self) -> NoReturn:
        """Tick once a second, and feed systemd's watchdog from here."""
        while True:
            self.tick()
            systemd.notify("WATCHDOG=1", f"STATUS={len(self.registry.lives)} instances")
            await asyncio.sleep(TICK_S)


class Metrics:
    """What Prometheus sees."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registrations = Counter(
            "pd_bootstrap_registrations",
            "PUT /route by what it did",
            ["change"],
            registry=self.registry,
        )
        self.instances = Gauge(
            "pd_bootstrap_instances", "Registered now", ["role", "state"], registry=self.registry
        )
        self.dp_ranks = Gauge(
            "pd_bootstrap_dp_rank_rooms", "Rooms whose rank is known", registry=self.registry
        )

    def show(self, service: Service) -> None:
        """Copy the present numbers into the gauges."""
        now_s = service.clock()
        counts = {(role, state): 0 for role in Role for state in State}
        for life in service.registry.lives.values():
            counts[life.role, life.state(now_s)] += 1
        for (role, state), count in counts.items():
            self.instances.labels(role.value, state.value).set(count)
        self.dp_ranks.set(len(service.dp_ranks))


def sglang_sizes(topology: Topology) -> dict[str, object]:
    """Return a topology under the names that SGLang's decode reads."""
    return {
        "attn_tp_size": topology.shape.attn_tp_size,
        "attn_cp_size": topology.shape.attn_cp_size,
        "dp_size": topology.shape.attn_dp_size,
        "pp_size": topology.shape.pp_size,
        "page_size": topology.fingerprint.page_size,
        "kv_cache_dtype": topology.fingerprint.dtype,
        "follow_bootstrap_room": True,  # a room's data-parallel rank is room % dp_size
        "instance": topology.instance,
        "epoch": topology.epoch,
    }


def _int(request: web.Request, name: str) -> int:
    value = request.query.get(name)
    if value is None:
        raise invalid(f"the parameter {name} is missing", stage="lookup")
    try:
        return int(value)
    except ValueError:
        raise invalid(f"{name}={value[:40]!r} is not an integer", stage="lookup") from None


def _refuse(error: Invalid | Unknown | Conflict | NotReady) -> NoReturn:
    raise Refusal(STATUS_OF[type(error)], str(error)) from error
