"""Which peers are alive: heartbeats both ways, and what may count as proof of death.

Silence makes a peer *suspect*: its rooms fail, but it may still write, so nothing of its memory
is released. Only evidence makes it *dead*: its port refuses connections, or the same instance
lives on with a newer epoch. Pure: times come in as arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from daemons.protocol.ids import PeerId


class Life(StrEnum):
    """What we believe of a peer."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


@dataclass(slots=True)
class _Watched:
    heard_s: float
    said_s: float
    life: Life = Life.ALIVE


class Liveness:
    """Heartbeat state of the peers of one rank; the dead are remembered, bounded."""

    def __init__(self, heartbeat_s: float, timeout_s: float, *, remember_dead: int = 1000) -> None:
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._remember_dead = remember_dead
        self._watched: dict[PeerId, _Watched] = {}
        self._dead: dict[PeerId, None] = {}
        self._newest: dict[tuple[str, int], int] = {}  # epoch of each instance and rank

    def watch(self, peer: PeerId, now: float) -> None:
        """Begin to expect heartbeats of ``peer``."""
        self._watched.setdefault(peer, _Watched(now, now))
        self._note_epoch(peer)

    def heard(self, peer: PeerId, now: float) -> bool:
        """Note a sign of life; says whether the peer had been suspect until now."""
        watched = self._watched.get(peer)
        if watched is None:
            return False
        revived = watched.life is Life.SUSPECT
        watched.heard_s, watched.life = now, Life.ALIVE
        return revived

    def bury(self, peer: PeerId) -> None:
        """Note that ``peer`` is dead for good."""
        self._watched.pop(peer, None)
        self._dead[peer] = None
        self._note_epoch(peer)
        while len(self._dead) > self._remember_dead:
            del self._dead[next(iter(self._dead))]

    def forget(self, peer: PeerId) -> None:
        """Expect nothing of ``peer`` any more; that proves nothing, and it may come back."""
        self._watched.pop(peer, None)

    def life(self, peer: PeerId) -> Life:
        """Return what we believe; a peer that nobody watches counts as dead."""
        watched = self._watched.get(peer)
        return watched.life if watched else Life.DEAD

    def is_buried(self, peer: PeerId) -> bool:
        """Say whether this very life is known to have ended: proven dead, or not the newest."""
        newest = self._newest.get((peer.instance, peer.rank), 0)
        return peer in self._dead or peer.epoch < newest

    def heartbeats_due(self, now: float) -> list[PeerId]:
        """Return the peers to send a heartbeat to, and count it as sent."""
        due = [p for p, w in self._watched.items() if now - w.said_s >= self._heartbeat_s]
        for peer in due:
            self._watched[peer].said_s = now
        return due

    def fell_silent(self, now: float) -> list[PeerId]:
        """Return the peers that have just become suspect."""
        fallen = [
            peer
            for peer, watched in self._watched.items()
            if watched.life is Life.ALIVE and now - watched.heard_s >= self._timeout_s
        ]
        for peer in fallen:
            self._watched[peer].life = Life.SUSPECT
        return fallen

    def peers(self) -> dict[PeerId, Life]:
        """Return all watched peers."""
        return {peer: watched.life for peer, watched in self._watched.items()}

    def others_of(self, peer: PeerId) -> list[PeerId]:
        """Return watched peers with the instance and rank of ``peer`` in an older life."""
        return [
            other
            for other in self._watched
            if (other.instance, other.rank) == (peer.instance, peer.rank)
            and other.epoch < peer.epoch
        ]

    def _note_epoch(self, peer: PeerId) -> None:
        place = (peer.instance, peer.rank)
        self._newest[place] = max(peer.epoch, self._newest.pop(place, 0))
        while len(self._newest) > self._remember_dead:  # strangers' names must not pile up
            del self._newest[next(iter(self._newest))]
