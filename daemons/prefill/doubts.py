"""Decodes that live but cannot be written to: rooms fail early for a while, then one tries.

After ``AFTER`` writes in a row that broke, rooms for that decode are refused for ``FOR_S``. Then
one room at a time is let through, again each ``FOR_S``, until a write succeeds: that ends the
doubt. A single break has no consequence for the next room.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.protocol.ids import PeerId

AFTER = 3
FOR_S = 5.0


@dataclass(slots=True)
class Doubt:
    """What went wrong with one decode since a write succeeded."""

    breaks: int = 0
    detail: str = ""
    until_s: float = 0.0  # of the core's clock


@dataclass(slots=True)
class Doubts:
    """All decodes to which the last write broke."""

    known: dict[PeerId, Doubt] = field(default_factory=dict)

    def refusal(self, peer: PeerId, now: float) -> str:
        """Return why a room for ``peer`` is not even tried, "" when it is (and be it as a try)."""
        doubt = self.known.get(peer)
        if doubt is None or doubt.breaks < AFTER:
            return ""
        if now < doubt.until_s:
            left_s = doubt.until_s - now
            broken = f"{doubt.breaks} writes in a row broke ({doubt.detail})"
            return f"{broken}; next try in {left_s:.1f} s"
        doubt.until_s = now + FOR_S
        return ""

    def broke(self, peer: PeerId, detail: str, now: float) -> None:
        """Note a write that broke."""
        doubt = self.known.setdefault(peer, Doubt())
        doubt.breaks += 1
        doubt.detail = detail
        doubt.until_s = now + FOR_S

    def worked(self, peer: PeerId) -> None:
        """Note a write that succeeded, or the end of the peer."""
        self.known.pop(peer, None)
