"""Events of the fleet and of rooms, by time."""

from __future__ import annotations

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.topology import FleetEvent
from pdctl.events import merged, of_fleet, of_rooms
from pdctl.merge import Summary

FAILED = Summary(7, 1, "failed", {}, 5.0, 1, 0, Failure(Cause.PEER_DIED, "transfer", "p0"))
GOOD = Summary(8, 1, "done", {}, 5.0, 1, 0, None)


def test_a_failed_room_is_told_with_its_first_cause() -> None:
    (event,) = of_rooms([FAILED, GOOD], 100.0)
    assert (event.at_s, event.kind, event.cause) == (95.0, "failed", "peer.died")
    assert event.words == "failed: peer.died in transfer (p0)"
    assert event.short == "00000000"


def test_another_clock_is_brought_to_ours() -> None:
    (event,) = of_fleet([FleetEvent(100.0, "lost", "p0")], -3.0)
    assert (event.at_s, event.words) == (97.0, "is lost: its lease ran out")


def test_a_state_is_told_as_it_is() -> None:
    (event,) = of_fleet([FleetEvent(1.0, "draining", "p0", detail="n1:1")], 0.0)
    assert (event.words, event.short) == ("is draining (n1:1)", "p0")


def test_the_last_ones_are_kept_in_order() -> None:
    told = of_fleet([FleetEvent(at, "new", f"p{at:.0f}") for at in (3.0, 1.0, 2.0)], 0.0)
    assert [event.subject for event in merged(told, 2)] == ["p2", "p3"]
