"""Looking at the fleet again and again: through the phone book, or at workers listed by hand."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import aiohttp
import msgspec

from daemons.lb.config import StaticWorker
from daemons.lb.fleet import Fleet, Life, Worker
from daemons.lb.pairing import Pairing
from daemons.protocol.topology import InstanceInfo, Role, State
from daemons.runtime.http import url_of
from daemons.runtime.log import Logger, logger
from daemons.runtime.phonebook import PhoneBook, PhoneBookError

PROBE_S = 2.0  # deadline of one health check
MOMENT_S = 0.1  # a look that is not older is as good as a new one
ASK_S = 1.0  # between two questions to a worker
QUIET_LOOKS = 5  # without a room in flight: then nobody is asked

Look = Callable[[], Awaitable[list[InstanceInfo]]]


@dataclass(slots=True)
class Watch:
    """Whoever looks at the fleet; a look that fails leaves the view as it is."""

    fleet: Fleet
    look: Look
    silent: bool = False
    looked_s: float = 0.0  # when the last look ended
    looking: asyncio.Task[None] | None = None
    log: Logger = field(default_factory=logger)

    async def keep_seeing(self, poll_s: float) -> NoReturn:
        """Look every ``poll_s`` until cancelled."""
        while True:
            await self._see()
            await asyncio.sleep(poll_s)

    async def see_now(self) -> bool:
        """Look, unless that was done this moment; say whether the view may be another one now."""
        if time.monotonic() - self.looked_s < MOMENT_S:
            return False
        if self.looking is None or self.looking.done():
            self.looking = asyncio.create_task(self._see(), name="look")
        await asyncio.wait({self.looking}, timeout=PROBE_S)
        return self.looking.done()

    async def _see(self) -> None:
        try:
            infos = await self.look()
        except PhoneBookError as error:
            if not self.silent:
                told = {"trouble": error.trouble.value, "text": error.text}
                self.log.warning("phone_book.silent", **told)
            self.silent = True
        else:
            if self.silent:
                self.log.info("phone_book.answers")
            self.silent = False
            for name, condition in self.fleet.see(infos, time.monotonic()):
                self.log.info(f"worker.{condition}", worker=name)
        self.looked_s = time.monotonic()


def through(book: PhoneBook) -> Look:
    """Return the look that asks the phone book."""
    return book.instances


@dataclass(slots=True)
class Hearing:
    """Asks workers how they are, while rooms are in flight and shortly after.

    Decodes tell their credits, and prefills how fast they write to whom. A worker that does not
    answer several times in a row is lost: frozen, or cut off from us.
    """

    pairing: Pairing
    session: aiohttp.ClientSession
    headers: Callable[[], Mapping[str, str]]
    lost: Callable[[Worker, str], None]  # told who does not answer, in words
    misses: Counter[Life] = field(default_factory=Counter)  # in a row

    async def keep(self) -> NoReturn:
        """Ask every ``ASK_S`` until cancelled."""
        fleet, idle = self.pairing.fleet, QUIET_LOOKS
        while True:
            idle = 0 if fleet.rooms else idle + 1
            if idle < QUIET_LOOKS:
                workers = [worker for worker in fleet.workers.values() if worker.is_pickable]
                self.pairing.keep({worker.life for worker in fleet.workers.values()})
                await asyncio.gather(*(self._ask(worker) for worker in workers))
            else:
                self.misses.clear()
            await asyncio.sleep(ASK_S)

    async def _ask(self, worker: Worker) -> None:
        url = url_of(worker.host, worker.port) + "/status"
        limit = aiohttp.ClientTimeout(total=PROBE_S)
        try:
            async with self.session.get(url, headers=self.headers(), timeout=limit) as response:
                raw = await response.read()
        except (aiohttp.ClientError, OSError):  # what it said before grows old
            self._missed(worker)
            return
        del self.misses[worker.life]
        with contextlib.suppress(msgspec.DecodeError):
            self._hear(worker, msgspec.json.decode(raw, type=_Said))

    def _missed(self, worker: Worker) -> None:
        self.misses[worker.life] += 1
        if self.misses[worker.life] >= self.pairing.config.health_misses:
            del self.misses[worker.life]
            self.lost(worker, "it does not answer when it is asked how it is")

    def _hear(self, worker: Worker, said: _Said) -> None:
        if said.credits is not None and worker.role is Role.DECODE:
            self.pairing.credits.hear(worker.life, said.credits.tokens, time.monotonic())
        for peer, wire in (said.wires or {}).items():
            if wire.writing.sum_s > 0:
                self.pairing.rates[worker.name, peer] = wire.bytes / wire.writing.sum_s


class _Tokens(msgspec.Struct, frozen=True):
    tokens: int


class _Times(msgspec.Struct, frozen=True):
    sum_s: float = 0.0


class _Wire(msgspec.Struct, frozen=True):
    bytes: int = 0
    writing: _Times = _Times()


class _Said(msgspec.Struct, frozen=True):
    """Of ``protocol.story.WorkerStatus``, what balancing reads."""

    credits: _Tokens | None = None
    wires: dict[str, _Wire] | None = None  # of a prefill, by decode


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
