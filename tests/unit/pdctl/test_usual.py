"""Whether a room waited longer than others."""

from __future__ import annotations

import msgspec
import pytest

from daemons.protocol.story import STAGE_BUCKETS_S, StageTimes, WorkerStatus
from pdctl.merge import waterfall
from pdctl.usual import LEAST_ROOMS, WAITS, usual_s, verdict
from tests.support.fake_fleet import worker_status
from tests.support.stories import DECODE, LB, PREFILL

SEEN = waterfall([LB, PREFILL, DECODE], 0.0)


def times(took_s: float, rooms: int = LEAST_ROOMS) -> StageTimes:
    counted = StageTimes()
    for _ in range(rooms):
        counted = counted.with_one(took_s)
    return counted


def statuses(took_s: float, rooms: int = LEAST_ROOMS) -> dict[str, WorkerStatus]:
    stages = {name.partition(".")[2]: times(took_s, rooms) for name in WAITS}
    told = {}
    for name, role in (("p0", "prefill"), ("d0", "decode")):
        status = msgspec.convert(worker_status(name, role, {}), WorkerStatus)
        told[name] = msgspec.structs.replace(status, stage_times=stages)
    return told


def test_usual_is_what_nine_of_ten_stay_under() -> None:
    mixed = StageTimes((18, 0, 2, *(0,) * (len(STAGE_BUCKETS_S) - 2)), 0.0)
    assert usual_s(mixed) == STAGE_BUCKETS_S[0]
    assert usual_s(StageTimes((17, 0, 3, *(0,) * (len(STAGE_BUCKETS_S) - 2)), 0.0)) == 0.01
    assert usual_s(times(1e6)) == float("inf")


def test_a_room_like_the_others_is_called_so() -> None:
    assert verdict(SEEN, statuses(99.0)) == "nothing waited longer than usual"


def test_what_waited_longer_is_named_with_what_is_usual() -> None:
    said = verdict(SEEN, statuses(0.0))
    assert said.startswith("waited longer than usual: ")
    assert "(usually under 1 ms)" in said


@pytest.mark.parametrize("told", [{}, statuses(0.0, LEAST_ROOMS - 1)])
def test_where_too_little_is_known_nothing_is_said(told: dict[str, WorkerStatus]) -> None:
    assert verdict(SEEN, told) == ""
