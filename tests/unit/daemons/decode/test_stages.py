"""The stages of a decode, and which rooms are in each."""

from __future__ import annotations

from daemons.decode.request import Request
from daemons.decode.stages import STEPS, Stages
from daemons.protocol.ids import RoomKey
from tests.support.cores import decode_core, key, submit

IN_ORDER = ("prealloc", "transfer", "forward", "prebuilt", "running", "retracted")


def filled() -> Stages:
    """Stages with room 1 in the first, room 2 in the second, and so on; room 7 is over."""
    stages = decode_core(retract_tokens=64).stages
    for room, name in enumerate(IN_ORDER, 1):
        getattr(stages, name).rooms[key(room)] = request(room)
    stages.ending[key(7)] = request(7)
    return stages


def request(room: int) -> Request:
    return Request(submit(room), key(room), 0.0, 0.0, 2, kept=room)


def keys(requests: list[Request]) -> list[RoomKey]:
    return [request.key for request in requests]


def test_every_stage_of_the_table_can_be_reached_and_left() -> None:
    assert all("" in after for stage, after in STEPS.items() if stage)
    assert set().union(*STEPS.values()) == set(STEPS)
    assert set(IN_ORDER) == {*STEPS} - {""}


def test_rooms_are_told_by_stage_and_those_that_are_over_are_not() -> None:
    assert keys(filled().rooms()) == [key(room) for room in range(1, 7)]


def test_those_without_memory_hold_none_and_a_writer_has_that_of_one_in_transfer() -> None:
    assert keys(filled().holders()) == [key(room) for room in range(2, 7)]
    assert keys(filled().ours()) == [key(room) for room in range(3, 7)]


def test_a_room_is_found_in_any_stage_until_it_is_taken_out() -> None:
    stages = filled()
    for room in range(1, 7):
        found = stages.get(key(room))
        assert found is not None
        assert found.key == key(room)
        stages.take_out(key(room))
        assert stages.get(key(room)) is None
    assert stages.get(key(7)) is None
    assert list(stages.ending) == [key(7)]


def test_the_host_keeps_pages_of_retracted_rooms_and_of_those_that_were() -> None:
    assert filled().kept_pages == 6 + 7
