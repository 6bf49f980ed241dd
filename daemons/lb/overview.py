"""What operators, pdctl and Prometheus see of pd-lb."""

from __future__ import annotations

import time
from dataclasses import dataclass

from aiohttp import web

from daemons.lb.service import Service
from daemons.protocol.ids import ROOM_HEX_DIGITS
from daemons.protocol.story import WorkerStatus
from daemons.protocol.topology import Role, State
from daemons.runtime.http import Refusal, invalid, json_response, metrics_response, url_of


@dataclass(frozen=True, slots=True)
class Overview:
    """The routes that only look."""

    service: Service

    def routes(self) -> list[web.RouteDef]:
        """Return them."""
        return [
            web.get("/health", self.health),
            web.get("/metrics", self.metrics),
            web.get("/status", self.status),
            web.get("/fleet", self.fleet),
            web.get("/rooms", self.rooms),
            web.get("/rooms/{room}", self.room),
        ]

    async def health(self, _: web.Request) -> web.Response:
        """Say whether a request would be served now."""
        pairs = self.service.fleet.pairs(time.monotonic())
        if self.service.state is not State.READY or not pairs:
            self.service.pick()  # raises the refusal that a client would get, if there is one
        return json_response({"status": "ok", "pairs": len(pairs)})

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer in Prometheus' form."""
        service = self.service
        breakers = service.pairing.breakers
        service.metrics.show(service.fleet, breakers, service.recorder.counts(), time.monotonic())
        return metrics_response(self.service.metrics.registry)

    async def status(self, _: web.Request) -> web.Response:
        """Answer own rooms and the view of the fleet in the form that workers use too."""
        return json_response(
            WorkerStatus(
                instance=self.service.instance,
                role=Role.LB.value,
                epoch=self.service.epoch,
                state=self.service.state.value,
                version=self.service.version,
                up_s=time.monotonic() - self.service.started_s,
                model="",
                transport="http",
                rooms=self.service.recorder.counts(),
                pages={},
                pages_total=0,
                rows={},
                config_hash=self.service.config_hash,
                peers={
                    worker.name: worker.condition for worker in self.service.fleet.workers.values()
                },
                counters={
                    "requests": self.service.metrics.served,
                    "failures": self.service.metrics.failed,
                    "retries": self.service.metrics.retries,
                    "local_prefills": self.service.metrics.lone,
                },
            )
        )

    async def fleet(self, _: web.Request) -> web.Response:
        """Answer the view of the fleet in full."""
        now_s = time.monotonic()
        fleet = self.service.fleet
        breakers = self.service.pairing.breakers
        return json_response(
            {
                "seen_s_ago": None if fleet.seen_s is None else now_s - fleet.seen_s,
                "policies": {
                    "prefill": self.service.config.prefill_policy,
                    "decode": self.service.config.decode_policy,
                },
                "local_prefill": self.service.config.local_prefill,
                "pairs": [[worker.name for worker in pair.workers] for pair in fleet.pairs(now_s)],
                "reason": "" if fleet.pairs(now_s) else fleet.why_no_pair(now_s),
                "workers": [
                    {
                        "instance": worker.name,
                        "role": worker.role.value,
                        "epoch": worker.epoch,
                        "state": worker.state.value,
                        "struck": worker.struck,
                        "breaker": breakers.circuit(worker.life, now_s).value,
                        "url": url_of(worker.host, worker.port),
                        "rooms": fleet.rooms.get(worker.life, 0),
                    }
                    for worker in fleet.workers.values()
                ],
            }
        )

    async def rooms(self, _: web.Request) -> web.Response:
        """List open rooms, then the last failed and good ones, and tell the time here."""
        now_s = time.time()
        return json_response({"rooms": self.service.recorder.rows(now_s), "now_s": now_s})

    async def room(self, request: web.Request) -> web.Response:
        """Answer the stories of a room, which is named by its hexadecimal digits."""
        named = request.match_info["room"]
        try:
            stories = (
                self.service.recorder.stories(int(named, 16))
                if len(named) <= ROOM_HEX_DIGITS
                else []
            )
        except ValueError:
            raise invalid(f"room {named[:40]!r}: hexadecimal digits name a room") from None
        if not stories:
            raise Refusal(404, f"room {named} is not known here")
        return json_response({"stories": stories})
