"""What operators see of several processes that share a port: one balancer.

Each process answers for itself on a socket of its own; here its answers become one. Counts are
added; what every process knows of all (workers, pairs, rooms of each worker) is taken once.
Tokens are checked by the processes, which see the client's headers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from daemons.runtime.http import Refusal, json_response, metrics_response, read_body

OF_ALL = frozenset({"pd_lb_workers", "pd_lb_pairs", "pd_lb_worker_rooms"})  # each process knows
ASK_S = 5.0
DROPPED = frozenset({"host", "content-length", "transfer-encoding", "connection", "expect"})

Said = tuple[int, bytes, str]  # status, body, content type


@dataclass(slots=True)
class Merged:
    """The routes, over the processes' own ones."""

    faces: Sequence[aiohttp.ClientSession]  # each over the socket of one process

    def routes(self) -> list[web.RouteDef]:
        """Return them; what is not named here is asked of one process."""
        return [
            web.get("/metrics", self._all(_metrics)),
            web.get("/status", self._all(_status)),
            web.get("/rooms", self._all(_rooms)),
            web.get("/rooms/{room}", self.room),
            web.route("*", "/{path:.*}", self.any_one),
        ]

    async def any_one(self, request: web.Request) -> web.Response:
        """Answer with what the first process that answers says."""
        for face in self.faces:
            if (said := await _asked(face, request)) is not None:
                return _response(said)
        raise Refusal(503, "no process of this balancer answers")

    async def room(self, request: web.Request) -> web.Response:
        """Answer with what the process says that had the room."""
        last = await self.any_one(request)
        for face in self.faces:
            if (said := await _asked(face, request)) is not None and said[0] == 200:
                return _response(said)
        return last

    def _all(
        self, merge: Callable[[list[bytes]], web.Response]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            asked = [await _asked(face, request) for face in self.faces]
            every = [said for said in asked if said is not None]
            if not every:
                raise Refusal(503, "no process of this balancer answers")
            for said in every:
                if said[0] != 200:
                    return _response(said)
            return merge([body for _, body, _ in every])

        return answer


async def _asked(face: aiohttp.ClientSession, request: web.Request) -> Said | None:
    headers = {k: v for k, v in request.headers.items() if k.lower() not in DROPPED}
    try:
        async with face.request(
            request.method,
            f"http://process{request.path_qs}",
            data=await read_body(request),
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=ASK_S),
        ) as response:
            return response.status, await response.read(), response.content_type
    except (aiohttp.ClientError, OSError):
        return None


def _response(said: Said) -> web.Response:
    status, body, kind = said
    return web.Response(status=status, body=body, content_type=kind)


def _status(bodies: list[bytes]) -> web.Response:
    first, *others = (msgspec.json.decode(body) for body in bodies)
    for other in others:
        for name in ("rooms", "counters"):
            for key, count in other.get(name, {}).items():
                first[name][key] = first[name].get(key, 0) + count
    return json_response(first)


def _rooms(bodies: list[bytes]) -> web.Response:
    return json_response(
        {"rooms": [row for b in bodies for row in msgspec.json.decode(b)["rooms"]]}
    )


def _metrics(bodies: list[bytes]) -> web.Response:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Sum([body.decode() for body in bodies]))
    return metrics_response(registry)


class _Sum:
    """Families of several texts as one, in the form that a registry collects."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def collect(self) -> list[Metric]:
        """Return them."""
        families: dict[str, Metric] = {}
        values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], Any]] = {}
        for text in self._texts:
            for family in text_string_to_metric_families(text):
                if family.name.endswith("_created"):
                    continue
                families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                there = values.setdefault(family.name, {})
                for sample in family.samples:
                    key = sample.name, tuple(sorted(sample.labels.items()))
                    before = there.get(key, 0.0)
                    once = family.name in OF_ALL
                    there[key] = max(before, sample.value) if once else before + sample.value
        for name, family in families.items():
            for (sample_name, labels), value in values[name].items():
                family.add_sample(sample_name, dict(labels), value)
        return list(families.values())
