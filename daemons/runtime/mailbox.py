"""The message plane of one rank: a bound inbox, and one way out per peer.

Nothing here blocks: what cannot be taken at once is lost, and deadlines cover that. Bytes that
are no message, messages that are not sealed as ours are, and messages for another life of ours
are counted and dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import zmq
from zmq.utils.monitor import recv_monitor_message

from daemons.protocol.codec import MESSAGE_BYTES_LIMIT, BadMessage, decode, encode
from daemons.protocol.handshake import Message
from daemons.protocol.ids import PeerId
from daemons.protocol.seal import Opener, Refused, Sealer, Why
from daemons.runtime.complaints import Complaints
from daemons.runtime.events import ConnectionLost, MessageCame

HIGH_WATER = 1000  # messages per peer that wait for a slow or absent reader
DRAIN_LIMIT = 200  # messages taken in one go, so that timers are not starved
DRAIN_BYTES = 16 << 20  # and no more than so many bytes
INBOX_HIGH_WATER = 100  # messages of one connection that wait to be read
FRAME_BYTES = 64  # at most, around a message
HINTS = {
    Why.UNSEALED: "the sender has no key: give its host the key that this one has",
    Why.NO_KEY: "this daemon has no key and the sender has one: set key_file here too",
    Why.BAD_SEAL: "the sender's key is not ours, or it meant somebody else: compare the hashes "
    "that pdctl config view shows on both hosts",
    Why.REPLAYED: "somebody repeats messages that were here before: who reaches this port?",
    Why.CROWDED: "more ranks than one rank hears: start this daemon anew",
}


def zmq_address(host: str, port: int | str) -> str:
    """Return the ZMQ form of an address; IPv6 addresses get their brackets."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


class Mailbox:
    """ZMQ sockets of one rank; used by the reactor's thread only."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        me: PeerId,
        bind: str,
        *,
        secret: bytes | None = None,
    ) -> None:
        self._context = context
        self._me = me
        self._sealer, self._opener = Sealer(secret), Opener(me, secret)
        self._complaints = Complaints()
        self._ways: dict[PeerId, zmq.Socket[bytes]] = {}
        self._monitors: dict[zmq.Socket[bytes], PeerId] = {}
        self.dropped: Counter[str] = Counter()
        self.inbox = context.socket(zmq.PULL)
        self.inbox.setsockopt(zmq.IPV6, 1)
        self.inbox.setsockopt(zmq.LINGER, 0)
        self.inbox.setsockopt(zmq.RCVHWM, INBOX_HIGH_WATER)
        self.inbox.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_LIMIT + FRAME_BYTES)
        self.port = self._bind(bind)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Return what is to be polled."""
        return [self.inbox, *self._monitors]

    def connect(self, peer: PeerId, host: str, port: int) -> zmq.Socket[bytes] | None:
        """Open the way to a peer; returns the monitor to poll, None when it was open.

        None too when there is no way: a peer's own words may be no address, and sockets may run
        out. Then nothing is sent to it, and deadlines cover that.
        """
        if peer in self._ways:
            return None
        try:
            way = self._context.socket(zmq.PUSH)
        except zmq.ZMQError:
            self.dropped["no way to a peer"] += 1
            return None
        try:
            monitor = self._opened(way, zmq_address(host, port))
        except zmq.ZMQError:
            way.disable_monitor()
            way.close(linger=0)
            self.dropped["no way to a peer"] += 1
            return None
        self._ways[peer] = way
        self._monitors[monitor] = peer
        return monitor

    @staticmethod
    def _opened(way: zmq.Socket[bytes], address: str) -> zmq.Socket[bytes]:
        way.setsockopt(zmq.IPV6, 1)
        way.setsockopt(zmq.LINGER, 0)
        way.setsockopt(zmq.SNDHWM, HIGH_WATER)
        way.setsockopt(zmq.RECONNECT_IVL, 100)  # milliseconds
        way.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        way.setsockopt(zmq.CONNECT_TIMEOUT, 2000)
        monitor = way.get_monitor_socket(zmq.Event.DISCONNECTED | zmq.Event.CONNECT_RETRIED)
        try:
            way.connect(address)
        except zmq.ZMQError:
            monitor.close(linger=0)
            raise
        return monitor

    def disconnect(self, peer: PeerId) -> zmq.Socket[bytes] | None:
        """Close the way to a peer; returns its monitor, which is closed now."""
        way = self._ways.pop(peer, None)
        if way is None:
            return None
        monitor = next(m for m, p in self._monitors.items() if p == peer)
        del self._monitors[monitor]
        way.disable_monitor()
        monitor.close(linger=0)
        way.close(linger=0)
        return monitor

    def send(self, peer: PeerId, message: Message) -> bool:
        """Send without waiting; says whether the message was taken."""
        return peer in self._ways and self.send_bytes(peer, self.frame(peer, message))

    def frame(self, peer: PeerId, message: Message) -> bytes:
        """Return the bytes by which a message goes to a peer."""
        return self._sealer.close(encode(message), peer)

    def send_bytes(self, peer: PeerId, raw: bytes) -> bool:
        """Send a frame without waiting; says whether it was taken."""
        way = self._ways.get(peer)
        if way is None:
            return False
        try:
            way.send(raw, zmq.NOBLOCK)
        except zmq.Again:
            self.dropped["peer does not read"] += 1
            return False
        return True

    def receive(self) -> Iterator[MessageCame]:
        """Yield the messages for this life of ours that are here now."""
        left_bytes = DRAIN_BYTES
        for _ in range(DRAIN_LIMIT):
            if left_bytes <= 0:
                return
            try:
                raw = self.inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            left_bytes -= len(raw)
            message = self._opened_message(raw)
            if message is None:
                continue
            if message.to_epoch != self._me.epoch:
                self.dropped["for another life"] += 1
                continue
            yield MessageCame(message)

    def _opened_message(self, raw: bytes) -> Message | None:
        """Return the message in a frame; None where it is refused, which is counted and told."""
        try:
            encoded, counter = self._opener.open(raw)
            message = decode(encoded)
            self._opener.admit(message.sender, counter)
        except BadMessage:
            self.dropped["no message"] += 1
        except Refused as refused:
            why = refused.why
            self.dropped[why.value] += 1
            self._complaints.say("message.refused", why.value, lambda: {"hint": HINTS[why]})
        else:
            return message
        return None

    def lost(self, monitor: zmq.Socket[bytes]) -> Iterator[ConnectionLost]:
        """Yield a connection's end if that is what a monitor says."""
        peer = self._monitors.get(monitor)
        while peer is not None and monitor.poll(0):
            recv_monitor_message(monitor)
            yield ConnectionLost(peer)

    def close(self) -> None:
        """Close everything; what was not taken by a peer is lost."""
        for peer in list(self._ways):
            self.disconnect(peer)
        self.inbox.close(linger=0)

    def flush(self, within_s: float) -> None:
        """Close the ways, giving the last messages up to ``within_s`` to leave."""
        for way in self._ways.values():
            way.disable_monitor()
            way.close(linger=int(within_s * 1000))
        for monitor in self._monitors:
            monitor.close(linger=0)
        self._ways.clear()
        self._monitors.clear()
        self.inbox.close(linger=0)

    def _bind(self, bind: str) -> int:
        self.inbox.bind(zmq_address(bind, "*"))
        endpoint = self.inbox.getsockopt(zmq.LAST_ENDPOINT)
        return int(bytes(endpoint).rstrip(b"\0").rpartition(b":")[2])
