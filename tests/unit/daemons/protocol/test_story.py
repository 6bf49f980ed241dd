"""Stories and status as JSON."""

from __future__ import annotations

import msgspec

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.story import Line, RoomRow, StageTimes, Story, WorkerStatus


def test_a_story_survives_json() -> None:
    line = Line(1.5, "", "prealloc", "request came", tokens=3)
    failure = Failure(Cause.PEER_DIED, "transfer", "p0")
    story = Story(7, 1, "d0", "decode", (line,), open=False, failure=failure, facts={"via": "tcp"})
    assert msgspec.json.decode(msgspec.json.encode(story), type=Story) == story


def test_a_room_row_survives_json() -> None:
    row = RoomRow(7, 1, "running", 0.5, "p0", 3, 2)
    assert msgspec.json.decode(msgspec.json.encode(row), type=RoomRow) == row


def test_a_worker_status_needs_no_measurements() -> None:
    status = WorkerStatus(
        instance="d0",
        role="decode",
        epoch=5,
        state="ready",
        version="0.1.0",
        up_s=1.0,
        model="m",
        transport="loopback",
        rooms={"running": 1},
        pages={"free": 4},
        pages_total=4,
        rows={"free": 2},
        peers={},
        counters={},
    )
    again = msgspec.json.decode(msgspec.json.encode(status), type=WorkerStatus)
    assert again == status
    assert again.ttft_p99_s is None


def test_times_of_a_stage_are_counted_by_bucket() -> None:
    times = StageTimes().with_one(0.001).with_one(0.0011).with_one(1000.0)
    assert (times.counts[0], times.counts[1], times.counts[-1]) == (1, 1, 1)
    assert sum(times.counts) == 3
    assert msgspec.json.decode(msgspec.json.encode(times), type=StageTimes) == times
