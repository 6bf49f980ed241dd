"""A rank's end of the wire to its front: a ZMQ pair; the front's death is the rank's end.

The front holds the other end of our standard input and never writes to it: when it reads as
ended, the front is gone, however it died.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import zmq

from daemons.protocol.codec import decode_to_rank, encode_link
from daemons.protocol.generate import ToFront, ToRank

STDIN = 0


class RankLink:
    """Connects to the front's address; used by the reactor's thread only."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self.socket = context.socket(zmq.PAIR)
        self.socket.setsockopt(zmq.LINGER, 1000)  # milliseconds: the last outputs may leave
        self.socket.setsockopt(zmq.SNDHWM, 0)  # the front reads everything; a rank never waits
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.connect(address)

    def send(self, message: ToFront) -> None:
        """Tell the front something."""
        self.socket.send(encode_link(message), zmq.NOBLOCK)

    def receive(self) -> Iterator[ToRank]:
        """Yield what the front has said."""
        while True:
            try:
                raw = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield decode_to_rank(raw)

    def front_is_gone(self) -> bool:
        """Say whether standard input, which is readable, has ended."""
        return not os.read(STDIN, 4096)

    def wait_for_end_of_front(self, within_s: float) -> None:
        """Wait until standard input has ended, or the time is over."""
        select.select([STDIN], [], [], within_s)

    def close(self) -> None:
        """Close, giving the last outputs a second."""
        self.socket.close()
