"""What a core of either kind asks its shell to do; each daemon adds its own commands."""

from __future__ import annotations

from dataclasses import dataclass

from daemons.protocol.generate import Output
from daemons.protocol.handshake import Message
from daemons.protocol.ids import PeerId


@dataclass(frozen=True, slots=True)
class Connect:
    """Open the way to a peer's inbox."""

    peer: PeerId
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the way to a peer and drop what was not sent yet."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Send:
    """Tell a peer something; lost when it cannot be taken at once (deadlines cover that)."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Tell a peer that we live; the shell adds the wall clock."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Probe:
    """Knock at a peer's inbox and report ``Probed``."""

    peer: PeerId
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Give outputs to the front."""

    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class Log:
    """One closing line of a room, or a fact about a peer."""

    event: str
    facts: tuple[tuple[str, object], ...]
