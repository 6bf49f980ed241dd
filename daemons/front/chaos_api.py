"""``/chaos``: faults put into this instance on purpose, seen and taken out again.

Refused with 403 where the cluster file does not allow them.
"""

from __future__ import annotations

from aiohttp import web

from daemons.front.desk import Desk
from daemons.front.ranks import Ranks, Silent
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.chaos import OF_THE_FRONT, Fault, FaultOrder, flaw
from daemons.protocol.generate import Submit, ToRank
from daemons.runtime.faults import NOT_ALLOWED, Faults
from daemons.runtime.http import Refusal, invalid, json_response, read_json
from daemons.runtime.log import logger


class ChaosApi:
    """The endpoint, and the faults of the front itself."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._faults = Faults()
        self._desk: Desk | None = None

    def tell(self, message: ToRank) -> None:
        """Tell the ranks, unless a fault of the intake strikes."""
        if isinstance(message, Submit):
            self._faults.strike(Fault.INTAKE_RAISE, room=message.room)
        self._ranks.tell(message)

    def add_to(self, app: web.Application, desk: Desk) -> None:
        """Add the routes."""
        self._desk = desk
        app.router.add_get("/chaos", self.armed)
        app.router.add_post("/chaos", self.arm)
        app.router.add_delete("/chaos", self.clear)

    async def armed(self, _: web.Request) -> web.Response:
        """Answer ``{"armed": [text]}``."""
        self._admit()
        return await self._answer()

    async def arm(self, request: web.Request) -> web.Response:
        """Arm a fault; the body is a ``FaultOrder``."""
        self._admit()
        order = await read_json(request, FaultOrder)
        if wrong := flaw(order):
            raise invalid(wrong)
        logger().warning("chaos.armed", fault=str(order))
        if order.fault in OF_THE_FRONT:
            self._faults.arm(order)
            return await self._answer()
        return await self._answer(order)

    async def clear(self, _: web.Request) -> web.Response:
        """Take every fault out."""
        self._admit()
        logger().warning("chaos.cleared")
        self._faults.clear()
        return await self._answer(clear=True)

    async def _answer(
        self, order: FaultOrder | None = None, *, clear: bool = False
    ) -> web.Response:
        assert self._desk is not None
        try:
            told = await self._ranks.chaos(order, clear=clear) if self._desk.ready else []
        except Silent as silent:
            instance = self._desk.config.instance
            raise Refusal.of(Failure(Cause.INTERNAL, "front", instance, str(silent))) from silent
        for body in told:
            if refused := body.get("refused"):
                raise Refusal(409, str(refused))
        armed = self._faults.words()
        for body in told:
            words = body.get("armed")
            armed += list(map(str, words)) if isinstance(words, list) else []
        return json_response({"armed": armed})

    def _admit(self) -> None:
        assert self._desk is not None
        if not self._desk.config.chaos:
            raise Refusal(403, NOT_ALLOWED)
