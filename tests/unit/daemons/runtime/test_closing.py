"""The one closing line of a room."""

from __future__ import annotations

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.ids import RoomKey
from daemons.runtime.closing import closing_line

KEY = RoomKey(255, 2)


def test_a_good_end_names_the_room_and_its_numbers() -> None:
    line = closing_line(KEY, None, took_s=1.5)
    assert line.event == "room.closed"
    assert dict(line.facts) == {
        "room": "000000000000ff",
        "attempt": 2,
        "outcome": "ok",
        "took_s": 1.5,
    }


def test_a_bad_end_names_cause_stage_and_whom_to_blame() -> None:
    failure = Failure(Cause.PEER_DIED, "transfer", "p0", "gone")
    facts = dict(closing_line(KEY, failure, sent_bytes=3).facts)
    assert facts["outcome"] == "failed"
    assert (facts["cause"], facts["stage"], facts["blamed"], facts["detail"]) == (
        "peer.died",
        "transfer",
        "p0",
        "gone",
    )
    assert facts["sent_bytes"] == 3
