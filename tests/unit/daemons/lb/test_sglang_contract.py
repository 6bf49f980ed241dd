"""pd-lb drives workers that speak SGLang's contract, given as a static list.

The fakes are strict: the same body on both legs, rooms that both sides know, the prefill's own host
and bootstrap port, lists for batches, nothing of ours.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from daemons.lb.config import StaticWorker
from daemons.lb.watch import at_listed
from daemons.protocol.topology import Role
from daemons.runtime.http import Site, make_app, run_site

from .conftest import DEADLINE_S, Balancer, MakeBalancer, idle, read

BOOTSTRAP_PORT = 8998
ROOM_LIMIT = 2**63
OURS = ("bootstrap_instance", "bootstrap_attempt", "local_prefill")


@dataclass
class Meeting:
    """Where the two sides find each other: a room is served when both have it."""

    rooms: dict[int, asyncio.Event] = field(default_factory=dict)
    bodies: dict[int, bytes] = field(default_factory=dict)
    wrongs: list[str] = field(default_factory=list)

    async def met(self, room: int, body: bytes) -> None:
        if room in self.bodies:
            if self.bodies[room] != body:
                self.wrongs.append(f"room {room}: the legs got different bodies")
            self.rooms[room].set()
        self.bodies.setdefault(room, body)
        await asyncio.wait_for(self.rooms.setdefault(room, asyncio.Event()).wait(), DEADLINE_S)


@dataclass
class Sglang:
    """One SGLang server in prefill or decode mode."""

    name: str
    role: Role
    meeting: Meeting
    site: Site | None = None
    healthy: bool = True
    served: int = 0

    async def start(self) -> None:
        app = make_app()
        app.router.add_get("/health", self.health)
        for path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            app.router.add_post(path, self.answer)
        self.site = await run_site(app, "127.0.0.1", 0, stop_s=0.1)

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        self.check(request, body)
        rooms = body["bootstrap_room"]
        each = rooms if isinstance(rooms, list) else [rooms]
        await asyncio.gather(*(self.meeting.met(room, raw) for room in each))
        self.served += 1
        if body.get("stream"):
            return await self.stream(request)
        answers = [self.said("ab") for _ in each]
        return web.json_response(answers if isinstance(rooms, list) else answers[0])

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        texts = ["a"] if self.role is Role.PREFILL else ["a", "ab"]
        for text in texts:
            await response.write(b"data: " + json.dumps(self.said(text)).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    def said(self, text: str) -> dict[str, Any]:
        reason = {"type": "length", "length": 1} if self.role is Role.PREFILL else None
        return {"text": text, "meta_info": {"finish_reason": reason, "by": self.name}}

    def check(self, request: web.Request, body: dict[str, Any]) -> None:
        wrongs = [f"{name} is no field of SGLang's" for name in OURS if name in body]
        rooms, host, port = (body.get(f"bootstrap_{name}") for name in ("room", "host", "port"))
        if isinstance(rooms, list):
            count = len(rooms)
            if host != ["127.0.0.1"] * count or port != [BOOTSTRAP_PORT] * count:
                wrongs.append(f"a batch of {count} with {host} and {port}")
        elif (host, port) != ("127.0.0.1", BOOTSTRAP_PORT):
            wrongs.append(f"meets at {host}:{port}")
        each = rooms if isinstance(rooms, list) else [rooms]
        if not all(isinstance(room, int) and 0 <= room < ROOM_LIMIT for room in each):
            wrongs.append(f"rooms {rooms}")
        if request.content_type != "application/json":
            wrongs.append(f"content type {request.content_type}")
        self.meeting.wrongs += wrongs

    def listed(self) -> dict[str, Any]:
        assert self.site is not None
        own = {"bootstrap_port": BOOTSTRAP_PORT} if self.role is Role.PREFILL else {}
        return {
            "instance": self.name,
            "role": self.role.value,
            "address": "127.0.0.1",
            "port": self.site.port,
            **own,
        }


@dataclass
class Static:
    """A balancer with a static list of two servers."""

    lb: Balancer
    prefill: Sglang
    decode: Sglang
    http: aiohttp.ClientSession

    async def look(self) -> None:
        config = self.lb.service.config
        infos = await at_listed(config.static_workers, self.http)()
        self.lb.service.fleet.see(infos, asyncio.get_running_loop().time())


@pytest.fixture
async def static(balancer: MakeBalancer, http: aiohttp.ClientSession) -> AsyncIterator[Static]:
    meeting = Meeting()
    prefill, decode = (
        Sglang("p0", Role.PREFILL, meeting),
        Sglang("d0", Role.DECODE, meeting),
    )
    for server in (prefill, decode):
        await server.start()
    listed = [msgspec.convert(s.listed(), StaticWorker) for s in (prefill, decode)]
    lb = await balancer(static_workers=tuple(listed))
    made = Static(lb, prefill, decode, http)
    await made.look()
    yield made
    assert meeting.wrongs == []
    for server in (prefill, decode):
        assert server.site is not None
        await server.site.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 2}}),
        ("/generate", {"input_ids": [[1, 2], [3]]}),
        ("/v1/completions", {"prompt": ["a", "b", "c"], "model": "m"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "model": "m"}),
    ],
)
async def test_both_servers_get_one_body_with_the_prefills_own_place_to_meet(
    static: Static, path: str, body: dict[str, Any]
) -> None:
    async with static.lb.post(path, body) as response:
        status, answer = await read(response)
    first = answer[0] if isinstance(answer, list) else answer
    assert (status, first["meta_info"]["by"]) == (200, "d0")
    assert static.prefill.served == static.decode.served == 1
    await idle(static.lb)


async def test_a_stream_is_decodes_alone_since_others_promise_no_equal_events(
    static: Static,
) -> None:
    async with static.lb.post("/generate", {"text": "a", "stream": True}) as response:
        said = [one[6:] for one in (await response.read()).split(b"\n\n") if one]
    assert said.pop() == b"[DONE]"
    assert [(e["text"], e["meta_info"]["by"]) for e in map(json.loads, said)] == [
        ("a", "d0"),
        ("ab", "d0"),
    ]
    await idle(static.lb)


async def test_a_server_that_is_not_healthy_gets_nothing_until_it_is(static: Static) -> None:
    static.decode.healthy = False
    await static.look()
    async with static.lb.post("/generate", {"text": "a"}) as response:
        assert response.status == 503
    static.decode.healthy = True
    await static.look()
    async with static.lb.post("/generate", {"text": "a"}) as response:
        assert response.status == 200
    await idle(static.lb)


async def test_a_retry_says_nothing_of_attempts_to_servers_that_do_not_know_them(
    static: Static, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [True]
    served = static.decode.answer

    async def once(request: web.Request) -> web.StreamResponse:
        if failing.pop() if failing else False:
            return web.Response(status=503)
        return await served(request)

    assert static.decode.site is not None
    await static.decode.site.close()
    monkeypatch.setattr(static.decode, "answer", once)
    await static.decode.start()
    listed = [msgspec.convert(s.listed(), StaticWorker) for s in (static.prefill, static.decode)]
    infos = await at_listed(listed, static.http)()
    static.lb.service.fleet.see(infos, asyncio.get_running_loop().time())
    async with static.lb.post("/generate", {"text": "a"}) as response:
        assert response.status == 200
        assert response.headers["X-PD-Attempt"] == "2"
    await idle(static.lb)
