"""What can happen to a rank of either kind; each daemon adds its own events to these."""

from __future__ import annotations

from dataclasses import dataclass

from daemons.protocol.causes import Failure
from daemons.protocol.generate import Submit
from daemons.protocol.handshake import Message
from daemons.protocol.ids import PeerId, RoomKey


@dataclass(frozen=True, slots=True)
class Submitted:
    """The front has a new request."""

    submit: Submit


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client does not want the room any more."""

    key: RoomKey
    failure: Failure


@dataclass(frozen=True, slots=True)
class Finished:
    """The front saw a stop string."""

    key: RoomKey


@dataclass(frozen=True, slots=True)
class MessageCame:
    """A valid message for this life of ours came from a peer."""

    message: Message


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The connection to a peer's inbox was closed; it may live on."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Probed:
    """Somebody knocked at the peer's inbox; ``refused`` proves that the process is gone."""

    peer: PeerId
    refused: bool


@dataclass(frozen=True, slots=True)
class Draining:
    """Take no new rooms (``on``), or take them again."""

    on: bool


@dataclass(frozen=True, slots=True)
class Stopping:
    """The process ends now: fail what is left."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; deadlines are looked at."""
