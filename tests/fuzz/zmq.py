"""Messages to a rank's inbox, valid ones that were spoiled, and bytes that are no ZMTP at all."""

from __future__ import annotations

import contextlib
import random
import socket
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from daemons.protocol.codec import HEAD, encode
from daemons.protocol.ids import PeerId
from daemons.protocol.seal import Sealer
from daemons.runtime.mailbox import zmq_address
from tests.fuzz.mutate import document, raw
from tests.wire.examples import PLANE

STRANGER = {"instance": "f0", "epoch": 5, "rank": 0}
# A stranger may say these; from a known peer they would be obeyed, as they must be.
ONLY_STRANGERS = {"RegisterBuffers", "Heartbeat", "RegistrationAnswer"}


@dataclass(slots=True)
class Sender:
    """Sends one spoiled message after the other to one rank."""

    context: zmq.Context[zmq.Socket[bytes]]
    inbox: tuple[str, int]
    me: PeerId  # who is written to
    peer: PeerId  # who it talks with
    secret: bytes | None
    draw: random.Random
    sent: int = 0
    way: zmq.Socket[bytes] = field(init=False)
    sealer: Sealer = field(init=False)

    def __post_init__(self) -> None:
        self.way = self.context.socket(zmq.PUSH)
        self.way.setsockopt(zmq.IPV6, 1)
        self.way.setsockopt(zmq.SNDTIMEO, 5000)
        self.way.connect(zmq_address(*self.inbox))
        self.sealer = Sealer(self.secret)

    def once(self) -> None:
        """Send one message, or now and then noise on a connection of its own."""
        self.sent += 1
        if self.draw.random() < 0.02:
            self._noise()
            return
        self.way.send(self._frame())

    def close(self) -> None:
        """Let go of the way; what still waits is lost."""
        self.way.close(linger=0)

    def _frame(self) -> bytes:
        plain = self._message()
        kind = self.draw.random()
        if kind < 0.7:
            plain = document(self.draw, plain)
        message = HEAD + _packed(plain)
        if 0.6 < kind < 0.8:
            message = HEAD + raw(self.draw, message[len(HEAD) :])
        frame = self.sealer.close(message, self.me)
        return raw(self.draw, frame) if kind > 0.85 else frame

    def _message(self) -> dict[str, Any]:
        example = PLANE[self.draw.choice(list(PLANE))]
        plain: dict[str, Any] = msgspec.msgpack.decode(encode(example)[len(HEAD) :])
        known = type(example).__name__ not in ONLY_STRANGERS and self.secret is None
        peer = self.peer
        named = {"instance": peer.instance, "epoch": peer.epoch, "rank": peer.rank}
        plain["sender"] = named if known and self.draw.random() < 0.5 else dict(STRANGER)
        plain["to_epoch"] = self.me.epoch
        if "room" in plain:
            plain["room"] = self.draw.randrange(1, 2**53)
        return plain

    def _noise(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(self.inbox, 1.0) as way:
            way.sendall(self.draw.randbytes(self.draw.choice([1, 64, 5000])))


def _packed(plain: object) -> bytes:
    try:
        return msgspec.msgpack.encode(plain)
    except (OverflowError, UnicodeEncodeError):  # a number or a text that msgpack cannot say
        return b"\xcf" + b"\xff" * 8
