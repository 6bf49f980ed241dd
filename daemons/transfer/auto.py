"""Each peer by the shortest way: cma where both run on one host and the kernel allows it, else
Mooncake.

The choice is made by asking the peer, when it is first written to, and holds until a write says
that the peer is gone; a write that failed is never carried out again over the other way. Our own
session is written to over every way: so the canary proves them all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from daemons.cluster.errors import OperatorError
from daemons.transfer import cma, mooncake
from daemons.transfer.backend import Copies, PeerGone, Region, TransferBackend
from daemons.transfer.cma import Cma
from daemons.transfer.config import TransferConfig
from daemons.transfer.sessions import joined, part

PEERS_LIMIT = 1024


def create(config: TransferConfig, host: str) -> Auto:
    """Start both; where cma does not work at all, Mooncake is alone.

    Raises:
        OperatorError: Mooncake cannot run here.
    """
    try:
        near: Cma | None = cma.create(config, host)
    except OperatorError:
        near = None
    return Auto(near, mooncake.create(config, host))


class Auto:
    """See ``TransferBackend``."""

    def __init__(self, near: Cma | None, far: TransferBackend) -> None:
        """``near`` reaches processes of this host, ``far`` everybody."""
        self._near = near
        self._far = far
        self._ways: OrderedDict[str, TransferBackend] = OrderedDict()
        self._lock = Lock()

    @property
    def session(self) -> str:
        far = {mooncake.NAME: self._far.session}
        return joined(far | ({cma.NAME: self._near.session} if self._near else {}))

    @property
    def transport(self) -> str:
        near = f"{self._near.transport} or " if self._near else ""
        return near + self._far.transport

    def transport_to(self, peer: str) -> str:
        way = self._ways.get(peer)
        return way.transport_to(peer) if way is not None else ""

    def register(self, regions: Sequence[Region]) -> None:
        self._far.register(regions)
        if self._near is not None:
            try:
                self._near.register(regions)
            except OperatorError:  # a GPU's memory
                self._near.close()
                self._near = None

    def write(self, peer: str, copies: Copies) -> None:
        if peer == self.session and self._near is not None:
            self._near.write(peer, copies)
        way = self._way(peer)
        try:
            way.write(peer, copies)
        except PeerGone:
            with self._lock:
                self._ways.pop(peer, None)
            raise

    def close(self) -> None:
        if self._near is not None:
            self._near.close()
        self._far.close()

    def _way(self, peer: str) -> TransferBackend:
        with self._lock:
            way = self._ways.get(peer)
        if way is not None:
            return way
        near = self._near
        usable = near is not None and peer != self.session and not near.trouble(peer)
        way = near if usable and near is not None else self._far
        if way is self._far and not part(peer, mooncake.NAME):
            raise PeerGone(f"{peer} has no part that can be reached from here")
        with self._lock:
            self._ways[peer] = way
            while len(self._ways) > PEERS_LIMIT:
                self._ways.popitem(last=False)
        return way
