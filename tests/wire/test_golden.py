"""Every message becomes exactly the agreed bytes, and they become the message again."""

from __future__ import annotations

import pytest

from daemons.protocol import generate, handshake
from daemons.protocol.metadata import ROW_BYTES, RowState, pack, unpack
from tests.wire.examples import (
    CODERS,
    GOLDEN,
    MESSAGES,
    PLANE,
    ROWS,
    TO_FRONT,
    TO_RANK,
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


@pytest.mark.parametrize(
    ("union", "examples"),
    [(handshake.Message, PLANE), (generate.ToRank, TO_RANK), (generate.ToFront, TO_FRONT)],
)
def test_there_is_an_example_of_every_message(union: object, examples: dict[str, object]) -> None:
    assert {type(message) for message in examples.values()} == set(union.__args__)  # type: ignore[attr-defined]


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.hex")} == {*MESSAGES, *ROWS}
