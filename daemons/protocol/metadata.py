"""The metadata row: what prefill writes last, beside the pages, for decode to go on from.

A row has room + attempt inside, is zeroed before it is offered, and has exactly one writer. So
"not yet written", "the right room" and "a wrong room" are three states, and a checksum over the
row tells a torn one. Behind the token there may be sums of chunks of pages, for decode to compare.
Fixed size, little endian, at least 64 bytes (an RDMA minimum upstream).

Source: SGLang ``disaggregation/utils.py`` ``MetadataBuffers``, there a tuple of tensors.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from daemons.protocol.generate import TOP_LOGPROBS_LIMIT, TokenOut
from daemons.protocol.ids import RoomKey

_HEAD = struct.Struct("<IIQIiIfI")  # magic, crc, room, attempt, token, cached, logprob, top
_TOP = struct.Struct("<if")
_COUNT = struct.Struct("<I")
_SUM = struct.Struct("<IIQ")  # first page, pages, sum
_MAGIC = 0x50445231  # "PDR1"
_NO_TOP = 0xFFFFFFFF  # log-probabilities were not asked for

ROW_BYTES = 2048
_SUMS_AT = _HEAD.size + TOP_LOGPROBS_LIMIT * _TOP.size
SUMS_LIMIT = (ROW_BYTES - _SUMS_AT - _COUNT.size) // _SUM.size
assert SUMS_LIMIT >= 16


class RowState(StrEnum):
    """What a look at a row can find."""

    EMPTY = "empty"
    RIGHT = "right"
    WRONG = "wrong"  # another room, another attempt, or torn


class ChunkSum(NamedTuple):
    """The sum of what was sent of some pages of a text, over all regions in order."""

    first: int  # page of the text
    pages: int
    sum: int


@dataclass(frozen=True, slots=True)
class Row:
    """The hand-over of one room."""

    key: RoomKey
    first: TokenOut
    cached_tokens: int = 0
    sums: tuple[ChunkSum, ...] = ()


def pack(row: Row) -> bytes:
    """Return the ``ROW_BYTES`` bytes of a row.

    Raises:
        ValueError: more top log-probabilities than ``TOP_LOGPROBS_LIMIT``, or too many sums.
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
    return with_sums((head + tail).ljust(_SUMS_AT, b"\0"), row.sums)


def with_sums(raw: bytes, sums: Sequence[ChunkSum]) -> bytes:
    """Return a packed row with these sums in it.

    Raises:
        ValueError: more than ``SUMS_LIMIT``.
    """
    if len(sums) > SUMS_LIMIT:
        raise ValueError(f"{len(sums)} sums, a row holds {SUMS_LIMIT}")
    packed = (_COUNT.pack(len(sums)), *(_SUM.pack(*one) for one in sums))
    return _sealed(raw[:4] + b"\0\0\0\0" + raw[8:_SUMS_AT] + b"".join(packed))


def _sealed(content: bytes) -> bytes:
    body = content.ljust(ROW_BYTES, b"\0")
    return body[:4] + struct.pack("<I", zlib.crc32(body)) + body[8:]


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
    (count,) = _COUNT.unpack_from(raw, _SUMS_AT)
    if count > SUMS_LIMIT:
        return RowState.WRONG, None
    at = _SUMS_AT + _COUNT.size
    sums = (ChunkSum(*_SUM.unpack_from(raw, at + i * _SUM.size)) for i in range(count))
    return RowState.RIGHT, Row(RoomKey(*key), first, cached, tuple(sums))
