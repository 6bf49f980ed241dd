"""``pd-lb --config FILE``: the balancer."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp
import uvloop

from daemons.cluster.errors import OperatorError
from daemons.cluster.key import load_key
from daemons.cluster.load import (
    LB_NAME,
    ClusterFile,
    address_of,
    load,
    phone_book_of,
    read_settings,
)
from daemons.lb.app import OPEN_TO_CLIENTS, run_lb
from daemons.lb.config import LbConfig
from daemons.lb.fleet import Fleet
from daemons.lb.gate import Gate
from daemons.lb.keys import ApiKeys
from daemons.lb.lead import Share
from daemons.lb.neighbours import Neighbours, keep_telling
from daemons.lb.pairing import pairing_of
from daemons.lb.policies import POLICIES
from daemons.lb.reload import api_keys_of, beside, reloaded
from daemons.lb.rooms import Rooms
from daemons.lb.service import Service
from daemons.lb.stories import STEPS
from daemons.lb.together import feed, serve_together
from daemons.lb.watch import Hearing, Look, Watch, at_listed, through
from daemons.lb.wire.site import FrontSite, Tls
from daemons.protocol.topology import Registration, Role, State
from daemons.runtime import log, program, systemd
from daemons.runtime.epoch import new_epoch
from daemons.runtime.garbage import collect_rarely
from daemons.runtime.guard import bearer, guard, tell_exposure
from daemons.runtime.http import bound, url_of
from daemons.runtime.phonebook import PhoneBook, PhoneBookError, keep_registered
from daemons.runtime.recorder import Recorder

KEEPALIVE_S = 30.0  # an idle connection to a worker


def settings(file: ClusterFile) -> LbConfig:
    """Return the balancer's settings; raises OperatorError."""
    config = read_settings(file.cluster, LB_NAME, LbConfig)
    for policy in (config.prefill_policy, config.decode_policy):
        if policy not in POLICIES:
            raise OperatorError(f"lb: no policy {policy}", f"there are: {', '.join(POLICIES)}")
    return config


@dataclass(slots=True)
class Running:
    """The balancer's service, its site, and what runs beside them."""

    config: LbConfig
    service: Service
    site: FrontSite
    book: PhoneBook
    advertise: str
    share: Share | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def registration(self) -> list[Registration]:
        """Return what the phone book shall know now."""
        service = self.service
        return [
            Registration(
                instance=LB_NAME,
                role=Role.LB,
                epoch=service.epoch,
                state=service.state,
                http_host=self.advertise,
                http_port=self.site.port,
                lease_s=self.config.lease_s,
                version=service.version,
            )
        ]

    def start(self, look: Look) -> list[asyncio.Task[None]]:
        """Begin what runs beside the requests."""
        service, config = self.service, self.config
        watch = Watch(service.fleet, look)
        service.serving.watch = watch
        hearing = Hearing(
            service.pairing, service.session, lambda: service.credentials, service.serving.lose
        )
        return [
            asyncio.create_task(watch.keep_seeing(config.poll_s), name="fleet"),
            asyncio.create_task(self._keep_known(), name="known"),
            asyncio.create_task(hearing.keep(), name="hearing"),
            asyncio.create_task(service.pool.keep_sweeping(), name="pool"),
            asyncio.create_task(feed(lambda: f"{len(service.open)} requests"), name="watchdog"),
        ]

    async def _keep_known(self) -> None:
        """Be in the phone book; one of several processes tells the others of its rooms instead."""
        config, service, share = self.config, self.service, self.share
        if share is not None:
            neighbours = Neighbours(share.number, service.fleet, service.gate.opened)
            await keep_telling(neighbours, share.folder, share.count)
        await keep_registered(self.book, self.registration, config.lease_s, changed=self.changed)

    async def drain(self, stop: program.Stop) -> None:
        """Take no more requests; let open ones finish until the deadline or a second signal."""
        service, limit_s = self.service, self.config.drain_s
        service.state = State.DRAINING
        self.changed.set()
        systemd.notify("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int((limit_s + 10) * 1e6)}")
        service.log.info("daemon.draining", requests=len(service.open), limit_s=limit_s)
        if not service.open:
            return
        ends = [asyncio.create_task(event.wait()) for event in (service.open.idle, stop.now)]
        await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if service.open:
            service.log.warning("requests.cut", requests=len(service.open))
            service.open.cut_all()


async def serve(file: ClusterFile, flags: argparse.Namespace) -> None:
    """Serve until SIGTERM, then drain."""
    config = settings(file)
    count = flags.workers or config.processes
    if flags.process is None and count > 1:
        await serve_together(file, config, count)
        return
    share = None
    if flags.process is not None:
        share = Share(flags.process, count, flags.folder, flags.fd, flags.at)
    log.configure(LB_NAME, Role.LB.value, level=config.log_level)
    stop = program.Stop()
    stop.listen()
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    ) as session:
        await _serve(file, config, session, stop, share)


async def _serve(
    file: ClusterFile,
    config: LbConfig,
    session: aiohttp.ClientSession,
    stop: program.Stop,
    share: Share | None,
) -> None:
    address = address_of(file.cluster, config.host)
    meeting = phone_book_of(file.cluster)
    key = load_key(file.cluster)
    service = _service(config, session, meeting)
    service.key = key
    service.keys = api_keys_of(file, config)
    service.config_hash = file.hash
    service.guard = guard(
        key, Role.LB, also_open=OPEN_TO_CLIENTS, metrics_too=file.cluster.guard_metrics
    )
    book = PhoneBook(url_of(*meeting), session, headers=bearer(key, Role.BOOTSTRAP))
    bind = config.bind or address
    tls = tls_of(file, config, config.tls_bind or bind, shared=share is not None)
    site = await run_lb(service, bind, config.port, _sockets(bind, share), tls=tls, share=share)
    running = Running(config, service, site, book, config.advertise or address, share)
    tasks = running.start(lambda: look_of(service.config, book, session)())
    collect_rarely()
    _listen_for_hangup(file, service, tls)
    if share is None:
        tell_exposure(bind, key)
        service.log.info("daemon.ready", bind=site.host, port=site.port)
    else:
        service.log.info("process.ready", process=share.number, port=site.port)
    systemd.notify("READY=1")
    try:
        await stop.asked.wait()
        await running.drain(stop)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *service.looking, return_exceptions=True)
        if share is None:
            with contextlib.suppress(PhoneBookError):
                await book.deregister(LB_NAME, service.epoch)
        await site.close()
        await service.lingering.close()
        service.pool.close()
        service.log.info("daemon.stopped")


def _sockets(bind: str, share: Share | None) -> list[socket.socket]:
    """Return what is listened on instead of a port of our own."""
    if share is None:
        held = program.socket_of_unit()
        return [] if held is None else [held]
    if share.fd is None:
        return [bound(bind, share.port, shared=True)]
    held = socket.socket(fileno=share.fd)
    held.setblocking(False)
    return [held]


def look_of(config: LbConfig, book: PhoneBook, session: aiohttp.ClientSession) -> Look:
    """Return how the fleet is looked at."""
    if config.static_workers:
        return at_listed(config.static_workers, session)
    return through(book)


def tls_of(file: ClusterFile, config: LbConfig, host: str, *, shared: bool = False) -> Tls | None:
    """Return how HTTPS is served, None where it is not; raises OperatorError."""
    if not config.tls_port:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, file, config)
    return Tls(context, host, config.tls_port, shared)


def load_certificate(context: ssl.SSLContext, file: ClusterFile, config: LbConfig) -> None:
    """Let new connections see the certificate that lies there now; raises OperatorError."""
    try:
        context.load_cert_chain(
            beside(file, config.tls_cert_file), beside(file, config.tls_key_file)
        )
    except OSError as error:  # ssl.SSLError too
        raise OperatorError(
            f"lb: no certificate of {config.tls_cert_file!r} and {config.tls_key_file!r}: {error}",
            "tls_cert_file and tls_key_file name PEM files beside the cluster file",
        ) from error


def _listen_for_hangup(file: ClusterFile, service: Service, tls: Tls | None) -> None:
    """On SIGHUP read the cluster file again."""

    def read() -> tuple[LbConfig, ApiKeys | None]:
        again = load(file.path)
        config = settings(again)
        keys = api_keys_of(again, config)
        if tls is not None:
            load_certificate(tls.context, file, service.config)
        return config, keys

    asyncio.get_running_loop().add_signal_handler(
        signal.SIGHUP, lambda: reloaded(service, read, Random(secrets.randbits(64)))
    )


def _service(config: LbConfig, session: aiohttp.ClientSession, meeting: tuple[str, int]) -> Service:
    fleet = Fleet(config.stale_s)
    return Service(
        config=config,
        fleet=fleet,
        pairing=pairing_of(config, fleet, Random(secrets.randbits(64))),
        gate=Gate(config.queue, config.queue_s),
        rooms=Rooms(secrets.randbits),
        recorder=Recorder(LB_NAME, Role.LB.value, STEPS),
        session=session,
        meeting=meeting,
        instance=LB_NAME,
        epoch=new_epoch(),
        version=program.version(),
    )


def flags_of() -> argparse.ArgumentParser:
    """Return the flags that are pd-lb's own; but for the first, it gives them to itself."""
    flags = argparse.ArgumentParser(add_help=False)
    flags.add_argument("--workers", type=int, metavar="N", help="processes that share the port")
    flags.add_argument("--process", type=int, help=argparse.SUPPRESS)
    flags.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    flags.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    flags.add_argument("--at", type=int, default=0, help=argparse.SUPPRESS)
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run pd-lb; returns the exit code."""
    about = "Picks a prefill and a decode for each request."
    own = flags_of()
    flags, _ = own.parse_known_args(argv)
    return program.run(
        "pd-lb",
        about,
        lambda file: serve(file, flags),
        argv,
        loop=uvloop.new_event_loop,
        flags_too=[own],
    )


if __name__ == "__main__":
    sys.exit(main())
