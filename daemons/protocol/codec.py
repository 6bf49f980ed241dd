"""Bytes of a message: two magic bytes, the protocol version, then one msgpack map.

Unknown tags, unknown fields, wrong types and values out of range are refused before anything
else looks at them.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from daemons.protocol.generate import ToFront, ToRank
from daemons.protocol.handshake import Message
from daemons.protocol.topology import PROTOCOL_VERSION

T = TypeVar("T")

MAGIC = b"PD"
MESSAGE_BYTES_LIMIT = 8 << 20  # the largest are 65536 regions, or a million pages of one room

_encoder = msgspec.msgpack.Encoder()
_message = msgspec.msgpack.Decoder(Message)
_to_rank = msgspec.msgpack.Decoder(ToRank)
_to_front = msgspec.msgpack.Decoder(ToFront)
HEAD = MAGIC + bytes([PROTOCOL_VERSION])


class BadMessage(Exception):
    """Bytes that are not one of our messages; the text says why and is safe to log."""


def encode(message: Message) -> bytes:
    """Return the bytes of a message for the plane between ranks."""
    return HEAD + _encoder.encode(message)


def decode(raw: bytes) -> Message:
    """Return the message in ``raw``.

    Raises:
        BadMessage: not ours, another protocol version, or not exactly one valid message.
    """
    if len(raw) > MESSAGE_BYTES_LIMIT:
        raise BadMessage(f"{len(raw)} bytes, the limit is {MESSAGE_BYTES_LIMIT}")
    check_head(raw)
    return _decoded(_message, memoryview(raw)[3:])


def check_head(raw: bytes) -> None:
    """Raise BadMessage unless ``raw`` begins as messages of this version do."""
    if raw[:2] != MAGIC:
        raise BadMessage("no magic: not a message of this protocol")
    if raw[2:3] != HEAD[2:3]:
        theirs = raw[2] if len(raw) > 2 else None
        raise BadMessage(f"protocol version: ours {PROTOCOL_VERSION}, theirs {theirs}")


def encode_link(message: ToRank | ToFront) -> bytes:
    """Return the bytes of a message between a front and its own ranks (same version always)."""
    return _encoder.encode(message)


def decode_to_rank(raw: bytes) -> ToRank:
    """Return what a front tells its rank; raises BadMessage."""
    return _decoded(_to_rank, raw)


def decode_to_front(raw: bytes) -> ToFront:
    """Return what a rank tells its front; raises BadMessage."""
    return _decoded(_to_front, raw)


def _decoded(decoder: msgspec.msgpack.Decoder[T], raw: bytes | memoryview) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise BadMessage(str(error)) from error
