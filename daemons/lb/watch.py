"""Looking at the fleet again and again: through the phone book, or at workers listed by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NoReturn

import aiohttp
import msgspec

from daemons.lb.config import StaticWorker
from daemons.lb.credits import Credits
from daemons.lb.fleet import Fleet, Worker
from daemons.protocol.topology import InstanceInfo, Role, State
from daemons.runtime.http import url_of
from daemons.runtime.log import logger
from daemons.runtime.phonebook import PhoneBook, PhoneBookError

PROBE_S = 2.0  # deadline of one health check
CREDITS_S = 1.0  # between two questions for credits, and the deadline of one
QUIET_LOOKS = 5  # without a room in flight: then nobody is asked

Look = Callable[[], Awaitable[list[InstanceInfo]]]


async def keep_seeing(fleet: Fleet, look: Look, poll_s: float) -> NoReturn:
    """Refresh ``fleet`` every ``poll_s`` until cancelled; a look that fails leaves it as it is."""
    log = logger()
    silent = False
    while True:
        try:
            infos = await look()
        except PhoneBookError as error:
            if not silent:
                log.warning("phone_book.silent", trouble=error.trouble.value, text=error.text)
            silent = True
        else:
            if silent:
                log.info("phone_book.answers")
            silent = False
            for name, condition in fleet.see(infos, time.monotonic()):
                log.info(f"worker.{condition}", worker=name)
        await asyncio.sleep(poll_s)


def through(book: PhoneBook) -> Look:
    """Return the look that asks the phone book."""
    return book.instances


async def keep_hearing(
    fleet: Fleet,
    credits: Credits,
    session: aiohttp.ClientSession,
    headers: Callable[[], Mapping[str, str]],
) -> NoReturn:
    """Ask decodes for their credits every second, while rooms are in flight and shortly after."""
    idle = QUIET_LOOKS
    while True:
        idle = 0 if fleet.rooms else idle + 1
        if idle < QUIET_LOOKS:
            decodes = [worker for worker in fleet.workers.values() if worker.role is Role.DECODE]
            credits.keep({worker.life for worker in decodes})
            asked = (_heard(worker, credits, session, headers()) for worker in decodes)
            await asyncio.gather(*asked)
        await asyncio.sleep(CREDITS_S)


async def _heard(
    worker: Worker, credits: Credits, session: aiohttp.ClientSession, headers: Mapping[str, str]
) -> None:
    url = url_of(worker.host, worker.port) + "/status"
    limit = aiohttp.ClientTimeout(total=CREDITS_S)
    try:
        async with session.get(url, headers=headers, timeout=limit) as response:
            said = msgspec.json.decode(await response.read(), type=_Said)
    except (aiohttp.ClientError, OSError, msgspec.DecodeError):
        return  # what it said before grows old
    if said.credits is not None:
        credits.hear(worker.life, said.credits.tokens, time.monotonic())


class _Tokens(msgspec.Struct, frozen=True):
    tokens: int


class _Said(msgspec.Struct, frozen=True):
    credits: _Tokens | None = None


def at_listed(workers: Sequence[StaticWorker], session: aiohttp.ClientSession) -> Look:
    """Return the look that checks the health of workers that the cluster file lists."""

    async def look() -> list[InstanceInfo]:
        return list(await asyncio.gather(*(_checked(worker, session) for worker in workers)))

    return look


async def _checked(worker: StaticWorker, session: aiohttp.ClientSession) -> InstanceInfo:
    url = url_of(worker.address, worker.port) + "/health"
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=PROBE_S)) as response:
            well = response.status == 200
    except (aiohttp.ClientError, OSError):
        well = False
    return InstanceInfo(
        instance=worker.instance,
        role=Role(worker.role),
        epoch=1,  # nobody tells
        state=State.READY if well else State.LOST,
        http_host=worker.address,
        http_port=worker.port,
        version="",
        ranks=1,
        ranks_expected=1,
        lease_left_s=time.monotonic() if well else 0.0,  # each good check counts as a renewal
    )
