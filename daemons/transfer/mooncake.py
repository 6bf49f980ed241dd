"""Mooncake's transfer engine behind the four verbs: RDMA where there is a device, else TCP.

One engine receives; its address is the session. Every peer is written to by an engine of its
own (``mooncake_sender``), which is ended whenever a write fails, before the caller hears of it:
that, and not Mooncake's return code, says that nothing leaves any more.

Whoever reaches an engine's ports can write into registered memory: there is no authentication.
Ports 15000-17000 belong behind a firewall that lets only the cluster in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from typing import Any

from daemons.cluster.errors import OperatorError
from daemons.transfer import mooncake_env, sockets
from daemons.transfer.backend import Copies, Region
from daemons.transfer.config import TransferConfig
from daemons.transfer.memory import Registered
from daemons.transfer.mooncake_engine import Engine, end_all
from daemons.transfer.mooncake_sender import Limits, Sender
from daemons.transfer.sessions import part

NAME = "mooncake"
PEERS_LIMIT = 128  # engines kept for peers; the one unused longest goes first
PROBE_AFTER_S = 5.0  # a peer unused for so long may be gone: its port tells
IDLE_S = 600.0  # where a new peer comes, unused engines end: a peer that died is not told of here
DEVICES = Path("/sys/class/infiniband")


def create(config: TransferConfig, host: str) -> Mooncake:
    """Start Mooncake in this process.

    Raises:
        OperatorError: it cannot run here, or not over the protocol that ``config`` asks for.
    """
    return Mooncake(mooncake_env.load(config, host), config, host)


@dataclass(slots=True)
class Peer:
    """A session that we have written to, and its engine while there is one."""

    lock: Lock = field(default_factory=Lock)
    sender: Sender | None = None
    used_s: float = field(default_factory=monotonic)  # when the last write began


class Mooncake:
    """See ``TransferBackend``."""

    def __init__(self, module: Any, config: TransferConfig, host: str) -> None:
        """``module`` is ``mooncake.engine``, imported under the settings of ``config``."""
        self._module = module
        self._config = config
        self._host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        self._memory = Registered()
        self._lock = Lock()
        self._peers: OrderedDict[str, Peer] = OrderedDict()
        self._closing = Event()
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
        with self._lock:
            self._memory.add(regions)
            peers = list(self._peers.values())
        self._receiver.register(regions)
        for peer in peers:
            with peer.lock:
                if peer.sender is not None:
                    peer.sender.engine.register(regions)

    def write(self, peer: str, copies: Copies) -> None:
        self._memory.check_sources(copies)
        if not len(copies):
            return
        session = part(peer, NAME)
        while not self._written(session, copies):
            pass  # the peer was forgotten between look-up and lock

    def close(self) -> None:
        self._closing.set()
        engines = [self._receiver]
        with self._lock:
            peers = list(self._peers.values())
            self._peers.clear()
        for peer in peers:
            with peer.lock:  # a write under way sees the flag and is cut
                if peer.sender is not None:
                    engines.append(peer.sender.engine)
                    peer.sender = None
        end_all(engines)

    def _written(self, session: str, copies: Copies) -> bool:
        known = self._peer(session)
        with known.lock:
            if self._closing.is_set():
                raise AssertionError("a write after close")
            if self._peers.get(session) is not known:
                return False
            if known.sender is None:
                known.sender = self._sender(session)
            try:
                known.sender.open()
                known.sender.push(copies)
            except BaseException:  # whatever it was, nothing may go on behind the caller
                if not known.sender.opening:  # else the next write waits for the same answer
                    sender, known.sender = known.sender, None
                    sender.end()
                raise
        return True

    def _peer(self, session: str) -> Peer:
        with self._lock:
            is_new = session not in self._peers
            known = self._peers.setdefault(session, Peer())
            known.used_s = monotonic()
            self._peers.move_to_end(session)
            others = list(self._peers.items())[:-1] if is_new else []
        for name, old in _spare(others):
            if old.lock.acquire(blocking=False):
                try:
                    self._forget(name, old)
                finally:
                    old.lock.release()
        return known

    def _forget(self, name: str, peer: Peer) -> None:
        with self._lock:
            if self._peers.get(name) is peer:
                del self._peers[name]
        if peer.sender is not None:
            peer.sender.end()
            peer.sender = None

    def _sender(self, session: str) -> Sender:
        engine = Engine(self._module, self._host, self._config.device)
        try:
            if self._memory.regions:
                engine.register(self._memory.regions)
        except OperatorError:
            engine.end()
            raise
        limits = Limits(self._config.batch_copies, self._config.write_timeout_s)
        return Sender(engine, session, limits, self._closing)


def _spare(peers: Sequence[tuple[str, Peer]]) -> list[tuple[str, Peer]]:
    """Return the peers whose engines are not worth their threads and descriptors.

    ``peers`` are the others of a new one, the least recently used first.
    """
    now_s = monotonic()
    spare = []
    for left, (name, peer) in zip(range(len(peers), 0, -1), peers, strict=True):
        unused_s = now_s - peer.used_s
        is_over = unused_s > IDLE_S or left >= PEERS_LIMIT
        if is_over or (unused_s > PROBE_AFTER_S and sockets.refuses(name)):
            spare.append((name, peer))
    return spare


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
