"""Every message becomes exactly the agreed bytes, and they become the message again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.protocol import generate, handshake
from daemons.protocol.codec import HEAD, BadMessage, decode
from daemons.protocol.metadata import ROW_BYTES, RowState, pack, unpack
from daemons.protocol.seal import Opener, Refused
from tests.wire.examples import (
    CODERS,
    DECODE,
    FRAMES,
    GOLDEN,
    MESSAGES,
    PLANE,
    ROWS,
    SECRET,
    TO_FRONT,
    TO_RANK,
    frame,
    golden,
)

HINT = "other bytes are another protocol version: see tests/wire/examples.py"


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_has_exactly_the_agreed_bytes(name: str) -> None:
    assert CODERS[name][0](MESSAGES[name]).hex() == golden(name).hex(), HINT


@pytest.mark.parametrize("name", MESSAGES)
def test_the_agreed_bytes_are_the_message(name: str) -> None:
    assert CODERS[name][1](golden(name)) == MESSAGES[name]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_exactly_the_agreed_bytes_and_nothing_behind_them(name: str) -> None:
    row, raw = ROWS[name], golden(name).ljust(ROW_BYTES, b"\0")
    assert pack(row) == raw, HINT
    assert unpack(raw, row.key) == (RowState.RIGHT, row)


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_has_exactly_the_agreed_bytes_and_is_opened(name: str) -> None:
    secret, message, _ = FRAMES[name]
    assert frame(name).hex() == golden(name).hex(), HINT
    encoded, counter = Opener(DECODE, secret).open(golden(name))
    assert decode(encoded) == message
    assert counter == (100 if secret else 0)


@pytest.mark.parametrize("secret", [None, SECRET])
@given(noise=st.binary(max_size=200), kind=st.sampled_from([b"", b"\0", b"\1"]))
@settings(max_examples=500, deadline=None)
def test_noise_is_no_frame(secret: bytes | None, noise: bytes, kind: bytes) -> None:
    for head in (b"", HEAD):
        with pytest.raises((BadMessage, Refused)):
            decode(Opener(DECODE, secret).open(head + kind + noise)[0])


@pytest.mark.parametrize(
    ("union", "examples"),
    [(handshake.Message, PLANE), (generate.ToRank, TO_RANK), (generate.ToFront, TO_FRONT)],
)
def test_there_is_an_example_of_every_message(union: object, examples: dict[str, object]) -> None:
    assert {type(message) for message in examples.values()} == set(union.__args__)  # type: ignore[attr-defined]


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.hex")} == {*MESSAGES, *ROWS, *FRAMES}
