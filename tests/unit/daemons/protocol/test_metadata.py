"""The metadata row: empty, right and wrong are three states."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.protocol.generate import TOP_LOGPROBS_LIMIT, TokenOut
from daemons.protocol.ids import ROOM_LIMIT, RoomKey
from daemons.protocol.metadata import (
    ROW_BYTES,
    SUMS_LIMIT,
    ChunkSum,
    Row,
    RowState,
    pack,
    unpack,
    with_sums,
)

KEY = RoomKey(77, 2)
ROW = Row(KEY, TokenOut(9, -0.5, ((9, -0.5), (4, -1.25))), cached_tokens=32)

float32 = st.floats(width=32, allow_nan=False)
tokens = st.integers(0, 2**31 - 1)
plain = st.builds(TokenOut, tokens)
probable = st.builds(
    TokenOut,
    tokens,
    float32,
    st.lists(st.tuples(tokens, float32), max_size=TOP_LOGPROBS_LIMIT).map(tuple),
)
sums = st.lists(
    st.builds(
        ChunkSum,
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 1),
    ),
    max_size=5,
).map(tuple)
rows = st.builds(
    Row,
    st.builds(RoomKey, st.integers(1, ROOM_LIMIT - 1), st.integers(1, 1000)),
    plain | probable,
    st.integers(0, 2**31),
    sums,
)


@given(rows, sums)
def test_sums_that_are_added_later_are_as_those_packed_at_once(
    row: Row, sums: tuple[ChunkSum, ...]
) -> None:
    assert with_sums(pack(row), sums) == pack(replace(row, sums=sums))


def test_more_sums_than_a_row_holds_are_refused() -> None:
    many = (ChunkSum(0, 1, 2),) * (SUMS_LIMIT + 1)
    with pytest.raises(ValueError, match="sums"):
        pack(replace(ROW, sums=many))
    with pytest.raises(ValueError, match="sums"):
        with_sums(pack(ROW), many)
    assert unpack(pack(replace(ROW, sums=many[:-1])), KEY)[0] is RowState.RIGHT


@settings(deadline=None)
@given(rows)
def test_a_row_that_was_packed_is_right_for_its_room(row: Row) -> None:
    raw = pack(row)
    assert len(raw) == ROW_BYTES
    assert unpack(raw, row.key) == (RowState.RIGHT, row)


def test_a_zeroed_row_is_empty() -> None:
    assert unpack(bytes(ROW_BYTES), KEY) == (RowState.EMPTY, None)


@pytest.mark.parametrize("other", [RoomKey(78, 2), RoomKey(77, 1)])
def test_the_row_of_another_room_or_attempt_is_wrong(other: RoomKey) -> None:
    assert unpack(pack(ROW), other) == (RowState.WRONG, None)


@settings(deadline=None)
@given(st.integers(0, ROW_BYTES - 1), st.integers(1, 255))
def test_a_row_with_any_byte_changed_is_wrong(at: int, by: int) -> None:
    raw = bytearray(pack(ROW))
    raw[at] ^= by
    assert unpack(bytes(raw), KEY) == (RowState.WRONG, None)


@settings(deadline=None)
@given(st.integers(1, 51))  # the content ends at 52
def test_a_torn_row_is_wrong(length: int) -> None:
    raw = pack(ROW)[:length].ljust(ROW_BYTES, b"\0")
    assert unpack(raw, KEY) == (RowState.WRONG, None)


@pytest.mark.parametrize("length", [0, 1, ROW_BYTES - 1, ROW_BYTES + 1])
def test_a_row_of_another_size_is_wrong(length: int) -> None:
    assert unpack(bytes(length), KEY) == (RowState.WRONG, None)


@settings(deadline=None)
@given(st.binary(min_size=ROW_BYTES, max_size=ROW_BYTES))
def test_noise_is_never_right(raw: bytes) -> None:
    state, row = unpack(raw, KEY)
    assert state is not RowState.RIGHT
    assert row is None


def test_more_top_log_probabilities_than_fit_are_refused() -> None:
    top = tuple((index, -1.0) for index in range(TOP_LOGPROBS_LIMIT + 1))
    with pytest.raises(ValueError, match="129 top log-probabilities, a row holds 128"):
        pack(Row(KEY, TokenOut(1, -1.0, top)))


def test_asked_for_none_and_not_asked_for_differ() -> None:
    asked = unpack(pack(Row(KEY, TokenOut(1, -1.0))), KEY)[1]
    unasked = unpack(pack(Row(KEY, TokenOut(1))), KEY)[1]
    assert asked is not None
    assert unasked is not None
    assert asked.first.logprob == -1.0
    assert unasked.first.logprob is None
