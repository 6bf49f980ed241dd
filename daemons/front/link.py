"""A front's end of the wire to one of its ranks: a ZMQ pair, one message a frame.

Sending never blocks: messages wait in an outbox in their order, and new requests are refused
when the rank has not taken the last ones. Bytes that are no message end the link: both ends are
of the same software, so that is a fault of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

import zmq
import zmq.asyncio

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.codec import BadMessage, decode_to_front, encode_link
from daemons.protocol.generate import Submit, ToFront, ToRank
from daemons.runtime.http import Refusal
from daemons.runtime.log import logger

OUTBOX_LIMIT = 4096  # messages; a rank that reads never lets so many wait
FLUSH_S = 1.0  # the last messages (Stop) may take so long


class Link:
    """Binds ``address`` and speaks with the one rank that connects."""

    def __init__(
        self, context: zmq.asyncio.Context, address: str, heard: Callable[[ToFront], None]
    ) -> None:
        self.address = address
        self._heard = heard
        self._outbox: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._socket: zmq.asyncio.Socket = context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 1000)
        self._socket.setsockopt(zmq.RCVHWM, 0)  # a rank must never wait for its front
        self._socket.bind(address)
        self.broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks = (
            asyncio.create_task(self._send(), name="link-send"),
            asyncio.create_task(self._receive(), name="link-receive"),
        )

    def tell(self, message: ToRank) -> None:
        """Put a message on its way.

        Raises:
            Refusal: 503 for a new request when the rank does not read.
        """
        if isinstance(message, Submit) and len(self._outbox) >= OUTBOX_LIMIT:
            failure = Failure(Cause.QUEUE_FULL, "intake", "", "the rank does not take requests")
            raise Refusal.of(failure, room=message.room, attempt=message.attempt)
        self._outbox.append(encode_link(message))
        self._flushed.clear()
        self._filled.set()

    async def flush(self) -> None:
        """Wait until everything is on its way, up to ``FLUSH_S``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._flushed.wait()

    async def close(self) -> None:
        """Close; what waits is lost."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()

    async def _send(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._outbox:
                await self._socket.send(self._outbox[0])
                self._outbox.popleft()
            self._flushed.set()

    async def _receive(self) -> None:
        while True:
            raw = await self._socket.recv()
            try:
                message = decode_to_front(raw)
            except BadMessage as error:
                if not self.broken.done():
                    self.broken.set_result(f"it sent what is no message: {error}")
                return
            try:
                self._heard(message)
            except Exception as error:  # noqa: BLE001 - nobody would hear the rank any more
                logger().exception("link.broke")
                if not self.broken.done():
                    self.broken.set_result(f"its words were not understood: {error!r}")
                return
