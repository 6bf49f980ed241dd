"""Runs a front: ranks, HTTP, registration, and the way out.

HTTP listens from the beginning and says 503 with the reason until every rank can serve. The
instance is one: when a rank dies, open requests get an error, and the front ends with it. A first
SIGTERM drains (leave routing, let rooms end, then stop), a second one stops at once.
READY=1 goes to systemd once the phone book knows us, or after a while without it: our health
depends on no peer.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import aiohttp
import msgspec
import structlog

from daemons.front import model_card, tracing
from daemons.front.chaos_api import ChaosApi
from daemons.front.config import FrontConfig
from daemons.front.control_api import ControlApi
from daemons.front.course import Course
from daemons.front.desk import Desk
from daemons.front.generate_api import GenerateApi
from daemons.front.life import Life
from daemons.front.lookups import LookUps
from daemons.front.metrics import Meter
from daemons.front.openai_api import OpenAiApi
from daemons.front.pulse import Pulse
from daemons.front.ranks import Ranks
from daemons.front.rooms import OpenRooms
from daemons.protocol.topology import Role
from daemons.runtime import log, openapi
from daemons.runtime.guard import bearer, guard, tell_exposure
from daemons.runtime.http import make_app, run_site
from daemons.runtime.log import logger
from daemons.runtime.phonebook import PhoneBook
from daemons.runtime.program import Stop

GOODBYE_S = 1.0  # open requests write their errors within


def run(config: FrontConfig) -> int:
    """Serve until SIGTERM, SIGINT or a death; return the exit code, 0 after a signal.

    Raises:
        OperatorError: the model's directory or a rank's command is no good.
        OSError: most of all, the address is taken.
    """
    if not structlog.is_configured():
        log.configure(config.instance, config.role.value)
    return asyncio.run(serve(config))


async def serve(config: FrontConfig, stop: Stop | None = None) -> int:
    """Serve in a running event loop; ``stop`` replaces the signals of the process.

    Raises:
        OperatorError, OSError: see :func:`run`.
    """
    asked = stop if stop is not None else Stop()
    async with AsyncExitStack() as stack:
        course = await _built(config, stack)
        if stop is None:
            asked.listen(course.reload)
        return await course.run(asked)


async def _built(config: FrontConfig, stack: AsyncExitStack) -> Course:
    """Return everything built and HTTP open; ``stack`` takes it down again."""
    card = await asyncio.to_thread(model_card.load, config.model_dir)
    session = await stack.enter_async_context(aiohttp.ClientSession())
    headers = bearer(config.key, Role.BOOTSTRAP)
    book = PhoneBook(config.bootstrap_url, session, headers=headers)
    meter = Meter()
    ranks = Ranks(config.rank_argv)
    stack.push_async_callback(ranks.close)
    chaos = ChaosApi(ranks)
    rooms = OpenRooms(chaos.tell if config.chaos else ranks.tell, meter)
    look_ups = LookUps(book, ranks.tell_rank)
    stack.push_async_callback(look_ups.close)
    ranks.listen(lambda outputs: rooms.deliver(outputs.items), look_ups.ask)
    desk = Desk(config, card, Life(config.instance), ranks, book, rooms, meter, time.monotonic())
    stack.push_async_callback(desk.grammars.close)
    stack.push_async_callback(desk.meetings.close)
    pulse = Pulse(desk)
    door = guard(config.key, config.role, metrics_too=config.guard_metrics)
    app = make_app(body_bytes_limit=config.max_body_bytes, guard=door.middleware)
    tracing.add_to(app)
    openapi.add_to(
        app, openapi.document(config.instance, config.version, openapi.with_rooms(openapi.CLIENTS))
    )
    for api in (GenerateApi(desk), OpenAiApi(desk), ControlApi(desk, pulse)):
        api.add_to(app)
    chaos.add_to(app, desk)
    site = await run_site(app, config.bind, config.port, stop_s=GOODBYE_S)
    stack.push_async_callback(site.close)
    desk.config = msgspec.structs.replace(config, port=site.port)
    tell_exposure(config.bind, config.key)
    logger().info("http.listening", url=site.url)
    return Course(desk, ranks, pulse, site)
