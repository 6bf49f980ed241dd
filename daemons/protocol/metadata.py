"""The metadata row: what prefill writes last, beside the pages, for decode to go on from.

A row has room + attempt inside, is zeroed before it is offered, and has exactly one writer. So
"not yet written", "the right room" and "a wrong room" are three states, and a checksum over the
row tells a torn one. Fixed size, little endian, at least 64 bytes (an RDMA minimum upstream).

Source: SGLang ``disaggregation/utils.py`` ``MetadataBuffers``, there a tuple of tensors.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum

from daemons.protocol.generate import TOP_LOGPROBS_LIMIT, TokenOut
from daemons.protocol.ids import RoomKey

_HEAD = struct.Struct("<IIQIiIfI")  # magic, crc, room, attempt, token, cached, logprob, top
_TOP = struct.Struct("<if")
_MAGIC = 0x50445231  # "PDR1"
_NO_TOP = 0xFFFFFFFF  # log-probabilities were not asked for

ROW_BYTES = 2048
assert _HEAD.size + TOP_LOGPROBS_LIMIT * _TOP.size <= ROW_BYTES


class RowState(StrEnum):
    """What a look at a row can find."""

    EMPTY = "empty"
    RIGHT = "right"
    WRONG = "wrong"  # another room, another attempt, or torn


@dataclass(frozen=True, slots=True)
class Row:
    """The hand-over of one room."""

    key: RoomKey
    first: TokenOut
    cached_tokens: int = 0


def pack(row: Row) -> bytes:
    """Return the ``ROW_BYTES`` bytes of a row.

    Raises:
        ValueError: more top log-probabilities than ``TOP_LOGPROBS_LIMIT``.
    """
    first = row.first
    if len(first.top) > TOP_LOGPROBS_LIMIT:
        raise ValueError(
            f"{len(first.top)} top log-probabilities, a row holds {TOP_LOGPROBS_LIMIT}"
        )
    top = _NO_TOP if first.logprob is None else len(first.top)
    tail = b"".join(_TOP.pack(token, logprob) for token, logprob in first.top)
    head = _HEAD.pack(
        _MAGIC,
        0,
        row.key.room,
        row.key.attempt,
        first.id,
        row.cached_tokens,
        first.logprob or 0.0,
        top,
    )
    body = (head + tail).ljust(ROW_BYTES, b"\0")
    crc = zlib.crc32(body)
    return body[:4] + struct.pack("<I", crc) + body[8:]


def unpack(raw: bytes, key: RoomKey) -> tuple[RowState, Row | None]:
    """Read a row that is expected to be ``key``'s; a row is returned only when it is RIGHT."""
    if len(raw) != ROW_BYTES:
        return RowState.WRONG, None
    magic, crc, room, attempt, token, cached, logprob, top = _HEAD.unpack_from(raw)
    if magic == 0 and not any(raw):
        return RowState.EMPTY, None
    whole = raw[:4] + b"\0\0\0\0" + raw[8:]
    counted = 0 if top == _NO_TOP else top
    if magic != _MAGIC or crc != zlib.crc32(whole) or counted > TOP_LOGPROBS_LIMIT:
        return RowState.WRONG, None
    if (room, attempt) != key:
        return RowState.WRONG, None
    pairs = tuple(_TOP.unpack_from(raw, _HEAD.size + i * _TOP.size) for i in range(counted))
    first = TokenOut(token, None if top == _NO_TOP else logprob, pairs)
    return RowState.RIGHT, Row(RoomKey(*key), first, cached)
