"""The codec's own edges; every message and refusal byte by byte is in ``tests/wire``."""

from __future__ import annotations

import pytest

from daemons.protocol.codec import (
    MAGIC,
    MESSAGE_BYTES_LIMIT,
    BadMessage,
    decode,
    decode_to_front,
    decode_to_rank,
    encode,
    encode_link,
)
from daemons.protocol.generate import LookUp, Stop
from daemons.protocol.handshake import Heartbeat
from daemons.protocol.ids import PeerId
from daemons.protocol.topology import PROTOCOL_VERSION

BEAT = Heartbeat(PeerId("p0", 5), 7, 1.5)


def test_a_message_survives_the_wire_behind_magic_and_version() -> None:
    raw = encode(BEAT)
    assert raw[:3] == MAGIC + bytes([PROTOCOL_VERSION])
    assert decode(raw) == BEAT


def test_another_version_is_refused_with_both_numbers() -> None:
    raw = MAGIC + bytes([PROTOCOL_VERSION + 1]) + encode(BEAT)[3:]
    with pytest.raises(BadMessage, match=f"ours {PROTOCOL_VERSION}, theirs {PROTOCOL_VERSION + 1}"):
        decode(raw)


def test_too_many_bytes_are_refused_unread() -> None:
    with pytest.raises(BadMessage, match="the limit is"):
        decode(bytes(MESSAGE_BYTES_LIMIT + 1))


def test_the_two_directions_of_a_link_do_not_read_each_other() -> None:
    assert decode_to_rank(encode_link(Stop())) == Stop()
    assert decode_to_front(encode_link(LookUp("p0"))) == LookUp("p0")
    with pytest.raises(BadMessage):
        decode_to_front(encode_link(Stop()))
    with pytest.raises(BadMessage):
        decode_to_rank(encode_link(LookUp("p0")))
