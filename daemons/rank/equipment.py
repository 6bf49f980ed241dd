"""What a rank process needs before its core can begin: weights, pools, sockets, a backend."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol, cast

import zmq

from daemons.cluster.key import load_key
from daemons.cluster.load import address_of, place_on_host
from daemons.cluster.models import model_directory
from daemons.engine.config import EngineConfig
from daemons.engine.cores import shared_out
from daemons.engine.engine import Engine
from daemons.protocol.generate import RankReady
from daemons.protocol.ids import PeerId
from daemons.protocol.topology import Role
from daemons.rank.canary import sing
from daemons.rank.chaos import Hooks, Retract
from daemons.rank.forward_lane import Steps
from daemons.runtime.log import Logger, configure, logger
from daemons.runtime.mailbox import Mailbox
from daemons.runtime.program import version
from daemons.runtime.rank_link import RankLink
from daemons.runtime.reactor import Clock, Core, Reactor, Shell, Wake
from daemons.runtime.row_memory import RowMemory
from daemons.runtime.worker import Flags
from daemons.transfer.backend import Region, TransferBackend
from daemons.transfer.config import TransferConfig
from daemons.transfer.registry import create

VERSION = version()
LAST_WORDS_MS = 500


@dataclass(frozen=True, slots=True)
class Equipment:
    """Everything but the core."""

    me: PeerId
    role: Role
    host: str  # address that peers are told
    log: Logger
    clock: Clock
    wake: Wake
    mailbox: Mailbox
    link: RankLink
    engine: Engine
    steps: Steps  # the engine, as the forward lane is to see it
    backend: TransferBackend
    rows: RowMemory
    reactor: Reactor
    config_hash: str
    context: zmq.Context[zmq.Socket[bytes]]
    hooks: Hooks | None  # where the cluster file allows faults

    def run(self, core: Core, shell: Shell, retract: Retract | None = None) -> int:
        """Serve until the front says stop; returns the exit code.

        ``retract`` makes the event that takes a room out of decode's batch, for a fault.
        """
        if self.hooks is not None:
            core, shell = self.hooks.around(core, shell, self.mailbox, retract)
        self.announce()
        code = self.reactor.run(core, shell)
        self.close()
        return code

    def close(self) -> None:
        """End: nothing is written any more, and the last messages get their time to leave."""
        self.backend.close()
        self.context.destroy(linger=LAST_WORDS_MS)

    def announce(self) -> None:
        """Tell the front that this rank can serve."""
        pool_tokens = self.engine.pages * self.engine.page_size
        self.link.send(
            RankReady(
                rank=self.me.rank,
                rank_port=self.mailbox.port,
                session=self.backend.session,
                transport=self.backend.transport,
                max_tokens=min(self.engine.max_model_len, pool_tokens),
                pages=self.engine.pages,
                page_size=self.engine.page_size,
                fingerprint=self.engine.fingerprint,
            )
        )
        self.log.info(
            "rank.ready",
            inbox_port=self.mailbox.port,
            session=self.backend.session,
            transport=self.backend.transport,
            pages=self.engine.pages,
            window_pages=self.engine.window_pages,
        )


class Wants(Protocol):
    """The settings that both kinds of worker have; see their ``config.py``."""

    @property
    def host(self) -> str:
        """On which of the file's hosts it runs."""
        ...

    @property
    def bind(self) -> str:
        """Address to listen on, "": the host's."""
        ...

    @property
    def advertise(self) -> str:
        """Address told to others, "": the host's."""
        ...

    @property
    def rows(self) -> int:
        """Rows of metadata."""
        ...

    @property
    def engine(self) -> EngineConfig:
        """Of the model and its memory."""
        ...

    @property
    def transfer(self) -> TransferConfig:
        """Of the backend."""
        ...


def equip(flags: Flags, role: Role, wants: Wants, window_rooms: int) -> Equipment:
    """Load the model, register all memory with the backend, bind the inbox, meet the front.

    ``window_rooms`` is how many rooms hold pages of layers with a window at once.

    Raises:
        OperatorError: the model, the device or the backend cannot be had.
        CanaryDied: what the backend writes does not arrive.
    """
    assert flags.link is not None
    me, cluster = flags.me, flags.file.cluster
    key = load_key(cluster)
    configure(me.instance, role.value)
    log = logger(rank=me.rank, epoch=me.epoch)
    host = wants.advertise or address_of(cluster, wants.host)
    settings = shared_out(
        wants.engine, sorted(os.sched_getaffinity(0)), *place_on_host(cluster, me.instance)
    )
    directory = model_directory(cluster.model)
    engine = Engine.load(settings, directory, window_rooms=window_rooms)
    engine.warm_up()
    rows = RowMemory(wants.rows)
    backend, steps, hooks = create(wants.transfer, host), cast(Steps, engine), None
    if cluster.chaos:
        log.warning("chaos.allowed", hint="never in a cluster that users are served by")
        hooks = Hooks(engine, backend, role)
        backend, steps = hooks.backend, hooks.steps
    backend.register([Region(*engine.kv_memory()), Region(rows.address, rows.bytes)])
    sing(backend, rows)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    clock, wake = Clock(), Wake()
    bind = wants.bind or address_of(cluster, wants.host)
    mailbox = Mailbox(context, me, bind, secret=key.plane if key else None)
    link = RankLink(context, flags.link)
    reactor = Reactor(me, mailbox, link, wake, clock, log)
    return Equipment(
        me, role, host, log, clock, wake, mailbox, link, engine, steps, backend, rows, reactor,
        flags.file.hash, context, hooks,
    )  # fmt: skip
