"""The stages of a prefill, and which rooms are in each."""

from __future__ import annotations

from daemons.prefill.request import Request
from daemons.prefill.stages import STEPS, Stages
from tests.support.cores import key, prefill_core, submit


def filled() -> Stages:
    """Stages with room 1 in the first, room 2 in the second, and so on; room 5 is over."""
    stages = prefill_core().stages
    waiting, rooms = stages.waiting, {room: request(room) for room in range(1, 6)}
    in_order = (stages.bootstrap.rooms, waiting.rooms, waiting.begun, stages.inflight.rooms)
    for stage, room in zip((*in_order, stages.ending), rooms.values(), strict=True):
        stage[room.key] = room
    return stages


def request(room: int) -> Request:
    return Request(submit(room), key(room), 0.0, 0.0)


def test_every_stage_of_the_table_can_be_reached_and_left() -> None:
    assert all("" in after for stage, after in STEPS.items() if stage)
    assert set().union(*STEPS.values()) == set(STEPS)


def test_rooms_are_told_by_stage_and_those_that_are_over_are_not() -> None:
    assert [request.key for request in filled().rooms()] == [key(room) for room in range(1, 5)]


def test_a_room_is_found_in_any_stage_until_it_is_taken_out() -> None:
    stages = filled()
    for room in range(1, 5):
        found = stages.get(key(room))
        assert found is not None
        assert found.key == key(room)
        stages.take_out(key(room))
        assert stages.get(key(room)) is None
    assert stages.get(key(5)) is None
    assert list(stages.ending) == [key(5)]
