"""Questions beside the requests that are passed on to workers: aborts, and what model they run."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import aiohttp
import msgspec
from aiohttp import web

from daemons.lb.fleet import Worker
from daemons.lb.service import Service, passed_on
from daemons.protocol.causes import Cause, Failure
from daemons.runtime.http import Refusal, json_response, read_body, url_of

ASIDE_S = 2.0  # deadline of each question


@dataclass(frozen=True, slots=True)
class Aside:
    """The routes that ask workers."""

    service: Service

    def routes(self) -> list[web.RouteDef]:
        """Return them."""
        return [
            web.post("/abort_request", self.abort_request),
            web.get("/v1/models", self.ask_a_worker),
            web.get("/get_model_info", self.ask_a_worker),
        ]

    async def abort_request(self, request: web.Request) -> web.Response:
        """Pass an abort on to every worker: which of them have the request is theirs to know."""
        raw = await read_body(request)
        if _means_all(raw):  # a client may end its own requests, the operator everybody's
            self.service.guard.check(request)
        workers = list(self.service.fleet.workers.values())
        told = await asyncio.gather(*(self._abort_at(worker, raw) for worker in workers))
        answers = {worker.name: status for worker, status in zip(workers, told, strict=True)}
        if not any(status == 200 for status in told):
            worst = next((status for status in told if 400 <= status < 500), 502)
            raise Refusal(worst, f"no worker took the abort: {answers or 'there is none'}")
        return json_response({"workers": answers})

    async def _abort_at(self, worker: Worker, raw: bytes) -> int:
        """Return the status of one worker's answer, 0 when there is none."""
        try:
            async with self.service.session.post(
                url_of(worker.host, worker.port) + "/abort_request",
                data=raw,
                headers={"Content-Type": "application/json", **self.service.credentials},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=ASIDE_S),
            ) as response:
                return response.status
        except (aiohttp.ClientError, OSError):
            return 0

    async def ask_a_worker(self, request: web.Request) -> web.Response:
        """Answer with what the first ready worker answers."""
        for worker in self.service.fleet.workers.values():
            if not worker.is_pickable:
                continue
            try:
                async with self.service.session.get(
                    url_of(worker.host, worker.port) + request.path_qs,
                    headers={**passed_on(request.headers), **self.service.credentials},
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=ASIDE_S),
                ) as response:
                    body = await response.read()
                    return web.Response(
                        status=response.status, body=body, content_type=response.content_type
                    )
            except (aiohttp.ClientError, OSError):
                continue
        reason = self.service.fleet.why_no_pair(time.monotonic()) or "no worker answers"
        raise Refusal.of(Failure(Cause.LB_NO_PAIR, "dispatch", "", reason))


def _means_all(raw: bytes) -> bool:
    """Say whether an abort may be meant for every request; the workers check its form."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return True  # no JSON to us: let nobody find a reader that understands it otherwise
    return not isinstance(body, dict) or bool(body.get("abort_all"))
