"""Several processes that serve on one port, and the lead that is all of them to others."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import aiohttp

from daemons.cluster.key import ClusterKey, load_key
from daemons.cluster.load import LB_NAME, ClusterFile, address_of, phone_book_of
from daemons.lb.config import LbConfig
from daemons.lb.lead import Processes, serve_merged
from daemons.protocol.topology import Registration, Role, State
from daemons.runtime import log, program, systemd
from daemons.runtime.epoch import new_epoch
from daemons.runtime.guard import bearer, tell_exposure
from daemons.runtime.http import bound, url_of
from daemons.runtime.phonebook import PhoneBook, PhoneBookError, keep_registered


async def serve_together(file: ClusterFile, config: LbConfig, count: int) -> None:
    """Let several processes serve on one port until SIGTERM, and be what others see of them."""
    log.configure(LB_NAME, Role.LB.value, level=config.log_level)
    stop, key = program.Stop(), load_key(file.cluster)
    stop.listen()
    bind = config.bind or address_of(file.cluster, config.host)
    held = program.socket_of_unit()
    reserved = held or bound(bind, config.port, shared=True)
    port = reserved.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="pd-lb-") as name, reserved:
        folder = Path(name)
        processes = Processes(file.path, count, folder, held, port)
        faces, close = await serve_merged(folder, count, config.max_body_bytes)
        for number in range(count):
            await processes.start(number)
        keeping = [asyncio.create_task(processes.keep(number)) for number in range(count)]
        try:
            await processes.up(faces)
            tell_exposure(bind, key)
            await _led(file, config, processes, stop, key)
        finally:
            processes.is_ending = True
            processes.signal(signal.SIGTERM)
            await processes.ended(config.drain_s + 10)
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            await close()
            processes.log.info("daemon.stopped")


async def _led(
    file: ClusterFile,
    config: LbConfig,
    processes: Processes,
    stop: program.Stop,
    key: ClusterKey | None,
) -> None:
    """Be in the phone book until SIGTERM, then while the processes drain."""
    state, changed, epoch = [State.READY], asyncio.Event(), new_epoch()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, processes.signal, signal.SIGHUP)
    advertise = config.advertise or address_of(file.cluster, config.host)

    def registration() -> list[Registration]:
        return [
            Registration(
                instance=LB_NAME, role=Role.LB, epoch=epoch, state=state[0], http_host=advertise,
                http_port=processes.port, lease_s=config.lease_s, version=program.version(),
            )
        ]  # fmt: skip

    async with aiohttp.ClientSession() as session:
        book = PhoneBook(
            url_of(*phone_book_of(file.cluster)), session, headers=bearer(key, Role.BOOTSTRAP)
        )
        known = asyncio.create_task(
            keep_registered(book, registration, config.lease_s, changed=changed)
        )
        watchdog = asyncio.create_task(feed(lambda: f"{processes.count} processes"))
        processes.log.info("daemon.ready", port=processes.port, processes=processes.count)
        systemd.notify("READY=1")
        try:
            await stop.asked.wait()
            state[0], processes.is_ending = State.DRAINING, True
            changed.set()
            limit_us = int((config.drain_s + 10) * 1e6)
            systemd.notify("STOPPING=1", f"EXTEND_TIMEOUT_USEC={limit_us}")
            processes.signal(signal.SIGTERM)
            again = asyncio.create_task(stop.now.wait())
            ended = asyncio.create_task(processes.ended(config.drain_s + 10))
            await asyncio.wait({again, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                processes.signal(signal.SIGTERM)
                await ended
            again.cancel()
        finally:
            known.cancel()
            watchdog.cancel()
            await asyncio.gather(known, watchdog, return_exceptions=True)
            with contextlib.suppress(PhoneBookError):
                await book.deregister(LB_NAME, epoch)


async def feed(told: Callable[[], str]) -> NoReturn:
    """Tell systemd that the loop turns, as often as it wants to hear it."""
    period_s = systemd.watchdog_period_s() or 10.0
    while True:
        systemd.notify("WATCHDOG=1", f"STATUS={told()}")
        await asyncio.sleep(period_s)
