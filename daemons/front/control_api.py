"""What is not a request for tokens: health, what we are, what we do, and orders to change it.

Health is that of this instance alone, never of a peer: 200 when it takes requests and its ranks
have answered lately. ``/status``, ``/rooms`` and ``/metrics`` ask the ranks anew each time.
"""

from __future__ import annotations

import time
from typing import NoReturn

import msgspec
from aiohttp import web

from daemons.front.config import FrontConfig
from daemons.front.desk import Desk
from daemons.front.pulse import Pulse
from daemons.front.ranks import Silent
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import AskFor, Drain
from daemons.protocol.ids import ROOM_HEX_DIGITS, ROOM_LIMIT
from daemons.protocol.topology import Role, State
from daemons.runtime.http import Refusal, invalid, json_response, metrics_response, read_json


class AbortBody(msgspec.Struct, frozen=True):
    """Body of ``POST /abort_request``; ``rid`` of a batch names all its items."""

    rid: str = ""
    abort_all: bool = False


class DrainBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /drain``."""

    on: bool
    force: bool = False  # end the rooms that are left, each with its reason


class ControlApi:
    """The endpoints on their desk."""

    def __init__(self, desk: Desk, pulse: Pulse) -> None:
        self._desk = desk
        self._pulse = pulse

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        get, post = app.router.add_get, app.router.add_post
        get("/health", self.health)
        get("/health_generate", self.health_generate)
        get("/v1/models", self.models)
        for path in ("/get_model_info", "/model_info"):
            get(path, self.model_info)
        for path in ("/get_server_info", "/server_info"):
            get(path, self.server_info)
        get("/status", self.status)
        get("/metrics", self.metrics)
        get("/rooms", self.rooms)
        get("/rooms/{room}", self.stories)
        post("/abort_request", self.abort_request)
        post("/drain", self.drain)

    async def health(self, _: web.Request) -> web.Response:
        """Say whether new requests are welcome."""
        self._desk.life.welcome()
        silent_s = self._pulse.silent_s()
        if silent_s > self._pulse.patience_s:
            self._broken(f"the ranks have been silent for {silent_s:.0f} s")
        return json_response({"status": "ok"})

    async def health_generate(self, _: web.Request) -> web.Response:
        """Say whether the ranks answer now; a worker alone cannot run a request."""
        self._desk.life.welcome()
        await self._ask(AskFor.STATUS)
        return json_response({"status": "ok"})

    async def models(self, _: web.Request) -> web.Response:
        """Answer OpenAI's list; ``owned_by`` is what SGLang's routers look for."""
        name = self._desk.config.model_name
        model = {
            "id": name,
            "object": "model",
            "created": self._desk.config.epoch // 1000,
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self._desk.limit,
        }
        return json_response({"object": "list", "data": [model]})

    async def model_info(self, _: web.Request) -> web.Response:
        """Answer SGLang's description of the model."""
        return json_response(
            {
                "model_path": str(self._desk.card.directory),
                "tokenizer_path": str(self._desk.card.directory),
                "served_model_name": self._desk.config.model_name,
                "is_generation": True,
                "max_context_length": self._desk.limit,
                "preferred_sampling_params": None,
            }
        )

    async def server_info(self, _: web.Request) -> web.Response:
        """Answer SGLang's description of the server, as far as routers read it."""
        desk, config = self._desk, self._desk.config
        shape = desk.ready[0].shape if desk.ready else None
        return json_response(
            {
                "model_path": str(desk.card.directory),
                "served_model_name": config.model_name,
                "disaggregation_mode": config.role.value,
                "disaggregation_bootstrap_port": _met_at(config),
                "tp_size": shape.attn_tp_size if shape else 1,
                "dp_size": shape.attn_dp_size if shape else 1,
                "pp_size": shape.pp_size if shape else 1,
                "page_size": desk.ready[0].page_size if desk.ready else None,
                "context_length": desk.limit,
                "max_total_num_tokens": min((r.max_tokens for r in desk.ready), default=None),
                "status": desk.life.state.value,
                "instance": config.instance,
                "local_prefill": config.local_prefill,
                "version": config.version,
            }
        )

    async def status(self, _: web.Request) -> web.Response:
        """Answer with a ``WorkerStatus``."""
        return json_response(await self._fresh())

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer in Prometheus' form; without ranks, with what the front itself knows."""
        try:
            await self._fresh()
        except Refusal:
            self._desk.meter.status = None
        return metrics_response(self._desk.meter.registry)

    async def rooms(self, _: web.Request) -> web.Response:
        """Answer ``{"rooms": [RoomRow], "now_s": …}``: by its clock readers tell how it goes."""
        bodies = await self._ask(AskFor.ROOMS)
        return json_response({"rooms": bodies[0].get("rooms", []), "now_s": time.time()})

    async def stories(self, request: web.Request) -> web.Response:
        """Answer ``{"stories": [Story]}`` of a room, given in decimal or hexadecimal."""
        given = request.match_info["room"]
        for room in rooms_meant(given):
            bodies = await self._ask(AskFor.STORY, room)
            if stories := bodies[0].get("stories"):
                return json_response({"stories": stories})
        raise Refusal(404, f"no story of room {given} here")

    async def abort_request(self, request: web.Request) -> web.Response:
        """End requests by their id; an unknown id ends nothing, and that is no error."""
        body = await read_json(request, AbortBody)
        if not body.rid and not body.abort_all:
            raise invalid("rid or abort_all is needed")
        rid = "abort_all" if body.abort_all else body.rid
        return json_response({"aborted": self._desk.rooms.abort(rid)})

    async def drain(self, request: web.Request) -> web.Response:
        """Take no more requests, or take them again."""
        body = await read_json(request, DrainBody)
        life = self._desk.life
        if life.stopping or life.state is State.STARTING:
            raise Refusal(409, f"{life.instance} is {life.state.value}: {life.reason}")
        if body.on != (life.state is State.DRAINING):
            if body.on:
                life.drain("an operator drains it", self._desk.config.timers.notice_s)
                await life.notice_over()
            else:
                life.enter(State.READY, "")
            self._desk.ranks.tell(Drain(on=life.state is State.DRAINING))
        if body.on and body.force:
            why = "an operator drains it and does not wait"
            self._desk.rooms.fail_all(Cause.INSTANCE_DRAINING, life.instance, why)
        return json_response({"state": life.state.value})

    async def _fresh(self) -> object:
        if not self._desk.ready:
            return self._pulse.without_ranks()
        try:
            return await self._pulse.ask()
        except Silent as silent:
            self._broken(str(silent))

    async def _ask(self, what: AskFor, room: int = 0) -> list[dict[str, object]]:
        if not self._desk.ready:
            self._broken("the ranks are loading", Cause.INSTANCE_STARTING)
        try:
            return await self._desk.ranks.ask(what, room)
        except Silent as silent:
            self._broken(str(silent))

    def _broken(self, why: str, cause: Cause = Cause.INTERNAL) -> NoReturn:
        failure = Failure(cause, "front", self._desk.config.instance, why)
        raise Refusal(503, str(failure), failure=failure)


def _met_at(config: FrontConfig) -> int:
    """Return the port by which a router names this prefill; any will do for a decode."""
    return config.port if config.role is Role.PREFILL else config.bootstrap_port


def rooms_meant(given: str) -> list[int]:
    """Return the rooms that a word may mean, the likelier first.

    Rooms print as 14 hexadecimal digits; where all of them are decimal ones both are meant.

    Raises:
        Refusal: 400, neither.
    """
    bases = (16, 10) if len(given) == ROOM_HEX_DIGITS else (10, 16)
    found = []
    for base in bases:
        try:
            room = int(given, base)
        except ValueError:
            continue
        if 0 < room < ROOM_LIMIT and room not in found:
            found.append(room)
    if not found:
        raise invalid(f"{given[:32]!r} is no room")
    return found
