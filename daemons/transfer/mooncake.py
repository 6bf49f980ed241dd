"""Mooncake's transfer engine behind the four verbs: RDMA where there is a device, else TCP.

One engine receives; its address is the session. Every peer is written to by an engine of its
own (``mooncake_sender``), which is ended whenever a write fails, before the caller hears of it:
that, and not Mooncake's return code, says that nothing leaves any more.

Whoever reaches an engine's ports can write into registered memory: there is no authentication.
Ports 15000-17000 belong behind a firewall that lets only the cluster in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daemons.cluster.errors import OperatorError
from daemons.transfer import mooncake_env, sockets
from daemons.transfer.backend import Copies, Region
from daemons.transfer.config import TransferConfig
from daemons.transfer.memory import Registered
from daemons.transfer.mooncake_engine import Engine, end_all
from daemons.transfer.mooncake_sender import Limits, Sender
from daemons.transfer.peers import Peer, Peers
from daemons.transfer.sessions import part

NAME = "mooncake"
DEVICES = Path("/sys/class/infiniband")


def create(config: TransferConfig, host: str) -> Mooncake:
    """Start Mooncake in this process.

    Raises:
        OperatorError: it cannot run here, or not over the protocol that ``config`` asks for.
    """
    return Mooncake(mooncake_env.load(config, host), config, host)


class Mooncake:
    """See ``TransferBackend``."""

    def __init__(self, module: Any, config: TransferConfig, host: str) -> None:
        """``module`` is ``mooncake.engine``, imported under the settings of ``config``."""
        self._module = module
        self._config = config
        self._host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        self._memory = Registered()
        self._peers: Peers[Sender] = Peers(_end, sockets.refuses)
        before = sockets.listening(mooncake_env.PORTS)
        self._receiver = Engine(module, self._host, config.device)
        opened = sockets.listening(mooncake_env.PORTS) - before - {self._receiver.port}
        self._transport = _transport(config, tcp=bool(opened))

    @property
    def session(self) -> str:
        return f"{self._host}:{self._receiver.port}"

    @property
    def transport(self) -> str:
        return self._transport

    def transport_to(self, peer: str) -> str:
        return self._transport if part(peer, NAME) in self._peers else ""

    def register(self, regions: Sequence[Region]) -> None:
        self._memory.add(regions)
        self._receiver.register(regions)
        for peer in self._peers.all():
            with peer.lock:
                if peer.way is not None:
                    peer.way.engine.register(regions)

    def write(self, peer: str, copies: Copies) -> None:
        self._memory.check_sources(copies)
        if not len(copies):
            return
        with self._peers.held(part(peer, NAME)) as held:
            try:
                held.way = held.way or self._sender(held.session)
                held.way.open()
                held.way.push(copies)
            except BaseException:  # whatever it was, nothing may go on behind the caller
                if held.way is None or not held.way.opening:
                    self._peers.forget(held)
                raise  # while it opens, the next write waits for the same answer

    def close(self) -> None:
        senders = self._peers.close()
        end_all([self._receiver, *(sender.engine for sender in senders)])

    def _sender(self, session: str) -> Sender:
        engine = Engine(self._module, self._host, self._config.device)
        try:
            if self._memory.regions:
                engine.register(self._memory.regions)
        except OperatorError:
            engine.end()
            raise
        limits = Limits(self._config.batch_copies, self._config.write_timeout_s)
        return Sender(engine, session, limits, self._peers.closing)


def _end(peer: Peer[Sender]) -> None:
    sender, peer.way = peer.way, None
    if sender is not None:
        sender.end()


def _transport(config: TransferConfig, *, tcp: bool) -> str:
    """Name the carrier: with TCP an engine listens for data besides its own port."""
    devices = sorted(path.name for path in DEVICES.iterdir()) if DEVICES.is_dir() else []
    if not tcp:
        return f"rdma {config.device or ','.join(devices)}"
    if config.protocol == "rdma":
        raise OperatorError(
            f"Mooncake uses TCP, not RDMA; devices: {', '.join(devices) or 'none'}",
            "transfer.protocol: auto takes what there is; ibv_devinfo shows what is usable",
        )
    return "tcp"
