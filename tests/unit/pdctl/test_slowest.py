"""Which rooms took longest."""

from __future__ import annotations

import msgspec

from daemons.protocol.story import Line, Story
from pdctl.slowest import chosen, lasted_s
from tests.support.stories import LB


def lasting(seconds: float, **changes: object) -> Story:
    lines = (Line(1.0, "", "dispatch", "x"), Line(1.0 + seconds, "dispatch", "", "done"))
    return msgspec.structs.replace(LB, lines=lines, **changes)


def test_the_slowest_come_first() -> None:
    stories = [lasting(1.0), lasting(3.0), lasting(2.0)]
    assert [lasted_s(story) for story in chosen(stories, 2)] == [3.0, 2.0]


def test_open_rooms_have_no_length_yet() -> None:
    assert chosen([lasting(9.0, open=True), msgspec.structs.replace(LB, lines=())], 2) == []
