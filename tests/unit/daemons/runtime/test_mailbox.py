from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from daemons.protocol.codec import encode
from daemons.protocol.handshake import Heartbeat
from daemons.protocol.ids import PeerId
from daemons.runtime.events import ConnectionLost, MessageCame
from daemons.runtime.mailbox import HIGH_WATER, Mailbox, zmq_address

P, D = PeerId("p0", 11), PeerId("d0", 22)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def heartbeat(sender: PeerId, to_epoch: int) -> Heartbeat:
    return Heartbeat(sender, to_epoch, 1.0)


def received(box: Mailbox) -> list[MessageCame]:
    assert box.inbox.poll(5000), "nothing came"
    return list(box.receive())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_messages_travel_both_ways_over_ipv4_and_ipv6(
    context: zmq.Context[zmq.Socket[bytes]], host: str
) -> None:
    prefill, decode = Mailbox(context, P, host), Mailbox(context, D, host)
    prefill.connect(D, host, decode.port)
    decode.connect(P, host, prefill.port)
    assert prefill.send(D, heartbeat(P, D.epoch))
    assert decode.send(P, heartbeat(D, P.epoch))
    assert received(decode) == [MessageCame(heartbeat(P, D.epoch))]
    assert received(prefill) == [MessageCame(heartbeat(D, P.epoch))]
    prefill.close()
    decode.close()


def test_a_message_for_an_earlier_life_is_dropped_and_counted(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    prefill, decode = Mailbox(context, P, "127.0.0.1"), Mailbox(context, D, "127.0.0.1")
    decode.connect(P, "127.0.0.1", prefill.port)
    decode.send(P, heartbeat(D, P.epoch - 1))
    assert received(prefill) == []
    assert prefill.dropped == {"for another life": 1}
    prefill.close()
    decode.close()


def test_bytes_that_are_no_message_are_dropped_and_counted(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    prefill = Mailbox(context, P, "127.0.0.1")
    stranger = context.socket(zmq.PUSH)
    stranger.connect(zmq_address("127.0.0.1", prefill.port))
    stranger.send(b"GET / HTTP/1.1")
    stranger.send(encode(heartbeat(D, P.epoch))[:-1])
    stranger.send(encode(heartbeat(D, P.epoch)))
    seen: list[MessageCame] = []
    while not seen:
        seen += received(prefill)
    assert seen == [MessageCame(heartbeat(D, P.epoch))]
    assert prefill.dropped == {"no message": 2}
    stranger.close(linger=0)
    prefill.close()


def test_a_peer_that_is_not_there_takes_no_more_than_the_high_water_mark_and_never_blocks(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    decode = Mailbox(context, D, "127.0.0.1")
    closed = Mailbox(context, P, "127.0.0.1")
    port = closed.port
    closed.close()
    assert not decode.send(P, heartbeat(D, P.epoch))  # never connected
    decode.connect(P, "127.0.0.1", port)
    taken = sum(decode.send(P, heartbeat(D, P.epoch)) for _ in range(HIGH_WATER + 50))
    assert taken <= HIGH_WATER
    assert decode.dropped["peer does not read"] >= 50
    decode.close()


def test_the_end_of_a_connection_is_told(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    decode, prefill = Mailbox(context, D, "127.0.0.1"), Mailbox(context, P, "127.0.0.1")
    monitor = decode.connect(P, "127.0.0.1", prefill.port)
    assert monitor is not None
    assert decode.connect(P, "127.0.0.1", prefill.port) is None  # open already
    decode.send(P, heartbeat(D, P.epoch))
    received(prefill)
    prefill.close()
    assert monitor.poll(5000), "no end of the connection was seen"
    assert next(decode.lost(monitor)) == ConnectionLost(P)
    assert decode.disconnect(P) is monitor
    assert decode.disconnect(P) is None
    decode.close()


@pytest.mark.parametrize("host", ["a b", "*", "\0"])
def test_a_peer_whose_address_is_none_gets_no_way_and_harms_nobody(
    context: zmq.Context[zmq.Socket[bytes]], host: str
) -> None:
    prefill = Mailbox(context, P, "127.0.0.1")
    assert prefill.connect(D, host, 9) is None
    assert not prefill.send(D, heartbeat(P, D.epoch))
    assert prefill.disconnect(D) is None
    assert prefill.dropped == {"no way to a peer": 1}
    prefill.close()


def test_peers_beyond_the_sockets_that_there_are_get_no_way_and_harm_nobody(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    context.set(zmq.MAX_SOCKETS, 20)
    prefill = Mailbox(context, P, "127.0.0.1")
    ways = [prefill.connect(PeerId("d0", epoch), "127.0.0.1", 9) for epoch in range(1, 21)]
    assert ways[0] is not None
    assert ways[-1] is None
    assert prefill.dropped["no way to a peer"] == ways.count(None)
    prefill.close()
