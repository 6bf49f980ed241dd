from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq
from structlog.testing import capture_logs

from daemons.protocol.codec import encode
from daemons.protocol.handshake import Heartbeat
from daemons.protocol.ids import PeerId
from daemons.protocol.seal import Sealer
from daemons.runtime import mailbox
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
    frame = Sealer(None).close(encode(heartbeat(D, P.epoch)), P)
    stranger.send(frame[:-1])
    stranger.send(frame)
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


KEY, OTHER = b"k" * 32, b"o" * 32


def heard(
    context: zmq.Context[zmq.Socket[bytes]], ours: bytes | None, frames: list[bytes]
) -> tuple[list[MessageCame], dict[str, int], list[dict[str, object]]]:
    """Return what a prefill takes of ``frames``, what it counts, and its warnings."""
    with capture_logs() as warnings:
        prefill = Mailbox(context, P, "127.0.0.1", secret=ours)
        stranger = context.socket(zmq.PUSH)
        stranger.connect(zmq_address("127.0.0.1", prefill.port))
        for frame in frames:
            stranger.send(frame)
        taken: list[MessageCame] = []
        while len(taken) + sum(prefill.dropped.values()) < len(frames):
            taken += received(prefill)
    stranger.close(linger=0)
    prefill.close()
    return taken, dict(prefill.dropped), [dict(line) for line in warnings]


def frame(secret: bytes | None, *, counter: int = 1, receiver: PeerId = P) -> bytes:
    return Sealer(secret, counter - 1).close(encode(heartbeat(D, P.epoch)), receiver)


def test_with_the_same_key_messages_travel(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    prefill = Mailbox(context, P, "127.0.0.1", secret=KEY)
    decode = Mailbox(context, D, "127.0.0.1", secret=KEY)
    decode.connect(P, "127.0.0.1", prefill.port)
    for _ in range(3):
        assert decode.send(P, heartbeat(D, P.epoch))
        assert received(prefill) == [MessageCame(heartbeat(D, P.epoch))]
    assert prefill.dropped == {}
    prefill.close()
    decode.close()


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (KEY, None, "unsealed"),
        (None, KEY, "sealed, no key here"),
        (KEY, OTHER, "bad seal"),
    ],
)
def test_a_side_with_another_key_or_none_is_refused_counted_and_told_once(
    context: zmq.Context[zmq.Socket[bytes]], ours: bytes | None, theirs: bytes | None, why: str
) -> None:
    frames = [frame(theirs, counter=n) for n in range(1, 6)]
    taken, dropped, warnings = heard(context, ours, frames)
    assert taken == []
    assert dropped == {why: 5}
    assert [(line["event"], line["reason"]) for line in warnings] == [("message.refused", why)]
    assert warnings[0]["hint"]


def test_a_message_that_was_here_before_is_refused(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    taken, dropped, _ = heard(context, KEY, [frame(KEY)] * 3)
    assert taken == [MessageCame(heartbeat(D, P.epoch))]
    assert dropped == {"replayed": 2}


def test_a_message_that_was_sealed_for_another_rank_is_refused(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    taken, dropped, _ = heard(context, KEY, [frame(KEY, receiver=PeerId("p1", P.epoch))])
    assert (taken, dropped) == ([], {"bad seal": 1})


def test_large_messages_are_taken_a_few_at_a_time(
    context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "DRAIN_BYTES", 1)
    prefill = Mailbox(context, P, "127.0.0.1")
    stranger = context.socket(zmq.PUSH)
    stranger.connect(zmq_address("127.0.0.1", prefill.port))
    for _ in range(3):
        stranger.send(frame(None))
    goes = [len(received(prefill)) for _ in range(3)]
    assert goes == [1, 1, 1]
    stranger.close(linger=0)
    prefill.close()
