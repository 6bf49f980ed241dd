"""Which rooms do not move."""

from __future__ import annotations

import pytest

from daemons.protocol.story import Line, RoomRow, Story
from pdctl.stuck import HINTS, Stuck, stuck, suspects


def row(**changes: object) -> RoomRow:
    facts = {"stage": "transfer", "age_s": 20.0, "peer": "p0", "output_tokens": 0} | changes
    return RoomRow(room=7, attempt=1, prompt_tokens=9, **facts)  # type: ignore[arg-type]


def test_an_old_open_room_that_is_the_same_twice_is_a_suspect() -> None:
    assert list(suspects({"d0": [row()]}, {"d0": [row(age_s=21.0)]}, 10.0)) == [
        ("d0", row(age_s=21.0))
    ]


@pytest.mark.parametrize(
    "changes", [{"stage": "done"}, {"output_tokens": 3}, {"stage": "running"}, {"age_s": 5.0}]
)
def test_one_that_moved_ended_or_is_young_is_none(changes: dict[str, object]) -> None:
    assert list(suspects({"d0": [row()]}, {"d0": [row(**changes)]}, 10.0)) == []


def test_a_story_with_a_late_line_acquits() -> None:
    def told(at_s: float) -> Story:
        return Story(7, 1, "d0", "decode", (Line(at_s, "", "transfer", "9 pages"),), True)

    found = [("d0", row(), told(100.0), 120.0), ("d0", row(), told(115.0), 120.0)]
    (one,) = stuck(found, 10.0)
    assert (one.quiet_s, one.because, one.peer) == (20.0, "9 pages", "p0")


def test_a_hint_names_where_to_look() -> None:
    one = Stuck(7, 1, "d0", "transfer", 20.0, 20.0, "p0", "9 pages")
    assert one.hint == "p0 writes nothing: pdctl logs p0"
    assert all("{" not in hint.format(peer="p0", instance="d0") for hint in HINTS.values())
