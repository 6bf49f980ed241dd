"""Each peer by the shortest way: cma where both run on one host and the kernel allows it, else
Mooncake.

Rules:
- The choice is made by asking the peer, when it is first written to, and holds until a write says
  that the peer is gone. A write that failed is never carried out again over the other way.
- One that has ended on this host is not looked for over the network: another process may have its
  port by now.
- Why it was not cma is kept, told with the transport, and logged where it is new.
- Our own session is written to over every way: so the canary proves them all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

import structlog

from daemons.cluster.errors import OperatorError
from daemons.transfer import cma, mooncake
from daemons.transfer.backend import Copies, PeerGone, Region, TransferBackend
from daemons.transfer.cma import Cma
from daemons.transfer.config import TransferConfig
from daemons.transfer.sessions import joined, part

PEERS_LIMIT = 1024

_log = structlog.get_logger()


def create(config: TransferConfig, host: str) -> Auto:
    """Start both; where cma does not work at all, Mooncake is alone.

    Raises:
        OperatorError: Mooncake cannot run here.
    """
    near, why = None, ""
    try:
        near = cma.create(config, host)
    except OperatorError as error:
        why = error.what
    return Auto(near, mooncake.create(config, host), why)


@dataclass(frozen=True, slots=True)
class Way:
    """How a peer is written to.

    Attributes:
        backend: what does it.
        not_near: why it is not cma; "" where it is.
        is_open: False once a write said that the peer is gone.
    """

    backend: TransferBackend
    not_near: str
    is_open: bool = True


class Auto:
    """See ``TransferBackend``."""

    def __init__(self, near: Cma | None, far: TransferBackend, not_near: str = "") -> None:
        """``near`` reaches processes of this host, ``far`` everybody; ``not_near``: why no near."""
        self._near = near
        self._far = far
        self._not_near = not_near
        self._ways: OrderedDict[str, Way] = OrderedDict()
        self._lock = Lock()

    @property
    def session(self) -> str:
        far = {mooncake.NAME: self._far.session}
        return joined(far | ({cma.NAME: self._near.session} if self._near else {}))

    @property
    def transport(self) -> str:
        if self._near is None:
            return told(self._far.transport, self._not_near)
        return f"{self._near.transport} or {self._far.transport}"

    def transport_to(self, peer: str) -> str:
        way = self._ways.get(peer)
        if way is None or not way.is_open:
            return ""
        return told(way.backend.transport_to(peer), way.not_near)

    def register(self, regions: Sequence[Region]) -> None:
        self._far.register(regions)
        if self._near is not None:
            try:
                self._near.register(regions)
            except OperatorError as error:  # a GPU's memory
                self._near.close()
                self._near, self._not_near = None, error.what

    def write(self, peer: str, copies: Copies) -> None:
        if peer == self.session and self._near is not None:
            self._near.write(peer, copies)
        way = self._way(peer)
        try:
            way.backend.write(peer, copies)
        except PeerGone:
            with self._lock:
                if peer in self._ways:
                    self._ways[peer] = replace(way, is_open=False)
            raise

    def close(self) -> None:
        if self._near is not None:
            self._near.close()
        self._far.close()

    def _way(self, peer: str) -> Way:
        with self._lock:
            before = self._ways.get(peer)
        if before is not None and before.is_open:
            return before
        way = self._chosen(peer)
        with self._lock:
            self._ways[peer] = way
            self._ways.move_to_end(peer)
            while len(self._ways) > PEERS_LIMIT:
                self._ways.popitem(last=False)
        is_news = before is None or before.not_near != way.not_near
        if is_news and (way.not_near or peer != self.session):
            self._tell(peer, way)
        return way

    def _chosen(self, peer: str) -> Way:
        why = self._not_near
        if self._near is not None:
            if peer == self.session:
                return Way(self._far, "")
            why = self._near.trouble(peer)
            if not why:
                return Way(self._near, "")
        if not part(peer, mooncake.NAME):
            raise PeerGone(f"{peer} has no part that can be reached from here")
        return Way(self._far, why)

    def _tell(self, peer: str, way: Way) -> None:
        """Log a choice; a warning where the bytes leave a host that they could stay on."""
        is_far = way.backend is self._far
        facts = {
            "peer": part(peer, mooncake.NAME) or peer,
            "transport": self._far.transport if is_far else way.backend.transport_to(peer),
        }
        if way.not_near:
            facts["not_cma"] = way.not_near
        tell = _log.warning if is_far and cma.is_neighbour(peer) else _log.info
        tell("way.chosen", **facts)


def told(transport: str, not_near: str) -> str:
    """Return what carries the bytes, and why that is not cma."""
    return f"{transport} (not {cma.NAME}: {not_near})" if transport and not_near else transport
