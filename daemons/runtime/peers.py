"""The ways to the peers of one rank: connect, heartbeat, knock when silent, bury on evidence.

Both cores use it the same way; what a death means for rooms is theirs to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.protocol.ids import PeerId
from daemons.runtime.commands import Connect, Disconnect, Probe, SendHeartbeat
from daemons.runtime.liveness import Life, Liveness

PeerCommand = Connect | Disconnect | Probe | SendHeartbeat


@dataclass(slots=True)
class Peers:
    """Known peers with the address of their inbox."""

    liveness: Liveness
    probe_every_s: float = 1.0
    addresses: dict[PeerId, tuple[str, int]] = field(default_factory=dict)
    _probed_s: dict[PeerId, float] = field(default_factory=dict)

    def add(self, peer: PeerId, host: str, port: int, now: float) -> list[PeerCommand]:
        """Begin to talk with a peer."""
        if peer in self.addresses:
            return []
        self.addresses[peer] = (host, port)
        self.liveness.watch(peer, now)
        return [Connect(peer, host, port), SendHeartbeat(peer)]

    def bury(self, peer: PeerId) -> list[PeerCommand]:
        """Stop talking with a peer that is proven dead."""
        self._probed_s.pop(peer, None)
        self.liveness.bury(peer)
        return [Disconnect(peer)] if self.addresses.pop(peer, None) else []

    def forget(self, peer: PeerId) -> list[PeerCommand]:
        """Stop talking with a peer to which nothing binds us; it may come back."""
        self._probed_s.pop(peer, None)
        self.liveness.forget(peer)
        return [Disconnect(peer)] if self.addresses.pop(peer, None) else []

    def knock(self, peer: PeerId, now: float) -> list[PeerCommand]:
        """Ask for evidence about a peer, at most once per ``probe_every_s``."""
        address = self.addresses.get(peer)
        if address is None or now - self._probed_s.get(peer, -1e9) < self.probe_every_s:
            return []
        self._probed_s[peer] = now
        return [Probe(peer, *address)]

    def tick(self, now: float) -> tuple[list[PeerCommand], list[PeerId]]:
        """Return heartbeats and knocks that are due, and the peers that just fell silent."""
        fallen = self.liveness.fell_silent(now)
        commands: list[PeerCommand] = [
            SendHeartbeat(peer) for peer in self.liveness.heartbeats_due(now)
        ]
        for peer, life in self.liveness.peers().items():
            if life is Life.SUSPECT:
                commands += self.knock(peer, now)
        return commands, fallen

    def believed(self) -> dict[str, str]:
        """Return peer and life as words, for people."""
        return {str(peer): life.value for peer, life in self.liveness.peers().items()}
