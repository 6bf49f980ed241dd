"""Names of rooms, instances, peers."""

from __future__ import annotations

import msgspec
import pytest

from daemons.protocol.ids import (
    ROOM_LIMIT,
    InstanceName,
    PeerId,
    Room,
    RoomKey,
    is_instance_name,
    room_hex,
    room_short,
)

GOOD = ["p0", "d", "decode-12", "a" * 32]
BAD = ["", "0p", "P0", "p_0", "a" * 33, "p0\n", "p0 ", "-p", "é"]


@pytest.mark.parametrize("name", GOOD)
def test_a_lower_case_word_names_an_instance(name: str) -> None:
    assert is_instance_name(name)
    assert msgspec.convert(name, InstanceName) == name


@pytest.mark.parametrize("name", BAD)
def test_anything_else_does_not_and_both_checks_agree(name: str) -> None:
    assert not is_instance_name(name)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, InstanceName)


@pytest.mark.parametrize("room", [0, -1, ROOM_LIMIT])
def test_a_room_is_neither_zero_nor_too_big_for_json(room: int) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(room, Room)


def test_the_biggest_room_survives_a_reader_with_doubles() -> None:
    assert int(float(ROOM_LIMIT - 1)) == ROOM_LIMIT - 1
    assert msgspec.convert(ROOM_LIMIT - 1, Room) == ROOM_LIMIT - 1


def test_rooms_are_printed_in_fourteen_digits_or_the_first_eight() -> None:
    assert room_hex(0xABC) == "00000000000abc"
    assert len(room_hex(ROOM_LIMIT - 1)) == 14
    assert room_short(0x1234567890ABCD) == "12345678"


def test_a_key_shows_room_and_attempt() -> None:
    assert str(RoomKey(255, 3)) == "000000000000ff.3"


def test_a_peer_shows_instance_rank_and_epoch() -> None:
    assert str(PeerId("p0", 17, 2)) == "p0/2@17"


def test_two_lives_are_two_peers() -> None:
    assert PeerId("p0", 1) != PeerId("p0", 2)
    assert len({PeerId("p0", 1), PeerId("p0", 1), PeerId("p0", 2)}) == 2
