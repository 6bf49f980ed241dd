"""The course of an instance's life: start the ranks, serve, drain, leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import msgspec

from daemons.cluster.load import ClusterFile, settings_of
from daemons.cluster.worker import Timers
from daemons.front.desk import Desk
from daemons.front.output import Order
from daemons.front.pulse import Pulse
from daemons.front.ranks import Death, Ranks, Silent
from daemons.front.registration import disagreement, registrations
from daemons.front.rooms import Call
from daemons.protocol.causes import Cause
from daemons.protocol.generate import Drain, Sampling
from daemons.protocol.ids import ROOM_LIMIT, RoomKey
from daemons.protocol.topology import Role, State
from daemons.runtime import systemd
from daemons.runtime.http import Refusal, Site
from daemons.runtime.log import logger
from daemons.runtime.phonebook import PhoneBookError, keep_registered
from daemons.runtime.program import EXIT_BAD_CONFIG, EXIT_FAILED, Stop
from daemons.runtime.reload import Reload

READY_S = 300.0  # ranks load their weights within
REGISTERED_S = 10.0  # after so long without a phone book we are ready all the same
IDLE_POLL_S = 0.2  # while draining
LIVE_TIMERS = ("drain_s", "notice_s")  # that the front alone reads
CANARY = RoomKey(ROOM_LIMIT - 1, 1)
CANARY_TOKENS = 3  # of the prefill, of a step, and of one that was prepared ahead
CANARY_S = 60.0
EXTENSION_US = 10_000_000  # systemd is asked for so much more time while rooms remain


class Course:
    """From the start of the ranks to the exit code."""

    def __init__(self, desk: Desk, ranks: Ranks, pulse: Pulse, site: Site) -> None:
        self._desk = desk
        self._ranks = ranks
        self._pulse = pulse
        self._site = site
        self._registered = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._reload: Reload | None = None

    def reload(self) -> None:
        """Read the cluster file again, if we have one."""
        file = self._desk.config.file
        if file is not None:
            if self._reload is None:
                self._reload = Reload(file, self._desk.config.instance, self._take_over)
            self._reload()

    def _take_over(self, file: ClusterFile) -> frozenset[str]:
        """Take over the times of a drain; what the ranks know needs a restart."""
        desk = self._desk
        merged, _ = settings_of(file.cluster, desk.config.instance)
        told = {name: merged.get("timers", {}).get(name) for name in LIVE_TIMERS}
        default = Timers()
        times = {name: getattr(default, name) if s is None else s for name, s in told.items()}
        timers = msgspec.structs.replace(desk.config.timers, **times)
        desk.config = msgspec.structs.replace(desk.config, timers=timers)
        return frozenset(f"timers.{name}" for name in LIVE_TIMERS)

    async def run(self, stop: Stop) -> int:
        """Live; return 0 after a signal, 78 where a rank found the file bad, 1 otherwise."""
        try:
            if await self._started(stop):
                self._open()
                await _first(self._ranks.death, stop.asked.wait())
                if not self._ranks.death.done():
                    await self._drain(stop)
            elif not stop.asked.is_set():
                return self._exit_code()
            if self._ranks.death.done():
                await self._mourn(self._ranks.death.result())
                return EXIT_FAILED
            await self._leave("the instance stops")
            return 0
        finally:
            await self._rest()

    def _exit_code(self) -> int:
        """Pass on that starting again would not help."""
        death = self._ranks.death
        is_bad_config = death.done() and death.result().exit_code == EXIT_BAD_CONFIG
        return EXIT_BAD_CONFIG if is_bad_config else EXIT_FAILED

    async def _started(self, stop: Stop) -> bool:
        """Bring the ranks up; say whether they came."""
        systemd.notify("STATUS=loading the model")
        await self._ranks.spawn()
        ready = asyncio.create_task(self._ranks.ready())
        try:
            async with asyncio.timeout(READY_S):
                await _first(self._ranks.death, stop.asked.wait(), ready)
        except TimeoutError:
            logger().error("ranks.late", limit_s=READY_S)
        finally:
            ready.cancel()
        if self._ranks.death.done():
            death = self._ranks.death.result()
            logger().error("rank.died", rank=death.rank, how=death.how, before="it was ready")
            return False
        if not ready.done() or ready.cancelled():
            return False
        if wrong := disagreement(ready.result()):
            logger().error("ranks.disagree", text=wrong)
            return False
        self._desk.ready = ready.result()
        return await self._canary()

    async def _canary(self) -> bool:
        """Let a decode that can do so serve a room of its own; say whether it lives."""
        desk = self._desk
        if not desk.config.local_prefill:
            return True
        sampling = Sampling(max_tokens=CANARY_TOKENS, temperature=0.0, ignore_eos=True)
        order = Order(CANARY, (0,), sampling, desk.config.instance, "canary")
        song = asyncio.create_task(self._sung(order))
        await _first(song, self._ranks.death)
        if not song.done():
            song.cancel()
            logger().error("canary.died", text=str(self._ranks.death.result()))
            return False
        return song.result()

    async def _sung(self, order: Order) -> bool:
        desk = self._desk
        try:
            async with Call([order], desk.rooms, desk.card.tokenizer, CANARY_S) as call:
                async for _ in call:
                    pass
        except Refusal as refusal:
            logger().error("canary.died", text=str(refusal))
            return False
        return True

    def _open(self) -> None:
        """Take requests, and let everybody know."""
        desk = self._desk
        desk.life.enter(State.READY, "")
        self._keep(
            keep_registered(
                desk.book,
                lambda: registrations(desk.config, desk.ready, desk.life.state, self._site.port),
                desk.config.timers.lease_s,
                changed=desk.life.changed,
                registered=self._registered,
            )
        )
        self._keep(self._pulse.keep())
        self._keep(self._announce())
        first = desk.ready[0]
        logger().info(
            "front.ready",
            url=self._site.url,
            transport=first.transport,
            pages=first.pages,
            page_size=first.page_size,
            limit_tokens=desk.limit,
        )

    async def _announce(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REGISTERED_S):
                await self._registered.wait()
        systemd.notify("READY=1")

    async def _drain(self, stop: Stop) -> None:
        """Let rooms end: until none is left, the deadline, a second signal or a death."""
        desk = self._desk
        timers = desk.config.timers
        desk.life.stop("it was told to stop", timers.notice_s, timers.drain_s)
        systemd.notify("STOPPING=1")
        logger().info("drain.begun", limit_s=timers.drain_s, open_rooms=len(desk.rooms))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timers.drain_s):
                await _first(self._ranks.death, stop.now.wait(), self._drained())
        logger().info("drain.ended", open_rooms=len(desk.rooms), at_once=stop.now.is_set())

    async def _drained(self) -> None:
        """Wait until others know that we leave, then until our rooms have ended."""
        await _first(self._nobody_routes(), self._desk.life.notice_over())
        self._desk.life.notice_ends_s = 0.0
        self._ranks.tell(Drain(on=True))
        await self._idle()

    async def _nobody_routes(self) -> None:
        """Return if no balancer is in the phone book; wait for ever where one may send rooms."""
        with contextlib.suppress(PhoneBookError):
            listed = await self._desk.book.instances()
            if not any(one.role is Role.LB and one.state is State.READY for one in listed):
                return
        await asyncio.Event().wait()

    async def _idle(self) -> None:
        """Wait until neither we nor the ranks have a room."""
        while True:
            with contextlib.suppress(Silent):
                status = await self._pulse.ask()
                rooms = sum(status.rooms.values())
                if not rooms and not len(self._desk.rooms):
                    return
                words = f"STATUS=draining, {rooms} rooms left"
                systemd.notify(f"EXTEND_TIMEOUT_USEC={EXTENSION_US}", words)
            await asyncio.sleep(IDLE_POLL_S)

    async def _mourn(self, death: Death) -> None:
        logger().error("rank.died", rank=death.rank, how=death.how)
        self._desk.life.stop(str(death))
        await self._leave(str(death))

    async def _leave(self, why: str) -> None:
        """Out of the phone book; whoever still waits gets an error."""
        desk = self._desk
        desk.rooms.fail_all(Cause.INSTANCE_STOPPING, desk.config.instance, why)
        await self._rest()
        if not desk.ready:  # never registered
            return
        try:
            await desk.book.deregister(desk.config.instance, desk.config.epoch)
        except PhoneBookError as error:  # the lease will run out
            logger().warning("deregistration.failed", text=error.text)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _rest(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _first(*waits: asyncio.Future[Any] | Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them is done; coroutines that are not are cancelled."""
    own = [asyncio.ensure_future(wait) for wait in waits if asyncio.iscoroutine(wait)]
    given = [wait for wait in waits if isinstance(wait, asyncio.Future)]
    try:
        await asyncio.wait([*own, *given], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
