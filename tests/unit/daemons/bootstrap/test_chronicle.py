"""What happened lately."""

from __future__ import annotations

import msgspec

from daemons.bootstrap.chronicle import EVENTS_LIMIT, Chronicle
from daemons.protocol.topology import State
from tests.unit.daemons.bootstrap.test_service import P0


def test_a_change_of_state_is_told_by_the_new_state() -> None:
    chronicle = Chronicle()
    chronicle.heard("new", P0, 1.0)
    chronicle.heard("state", msgspec.structs.replace(P0, state=State.DRAINING), 2.0)
    chronicle.lost("lost", "p0", 3.0)
    assert [(event.at_s, event.event) for event in chronicle.events] == [
        (1.0, "new"), (2.0, "draining"), (3.0, "lost"),
    ]  # fmt: skip


def test_only_what_is_younger_is_told() -> None:
    chronicle = Chronicle()
    for at_s in (1.0, 2.0, 3.0):
        chronicle.lost("lost", "p0", at_s)
    assert [event.at_s for event in chronicle.since(1.0)] == [2.0, 3.0]


def test_it_forgets_the_oldest() -> None:
    chronicle = Chronicle()
    for at_s in range(EVENTS_LIMIT + 5):
        chronicle.lost("lost", "p0", at_s)
    assert len(chronicle.events) == EVENTS_LIMIT
    assert chronicle.events[0].at_s == 5
