"""The one door for stage changes."""

from __future__ import annotations

import pytest

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.ids import RoomKey
from daemons.runtime.recorder import LINES_LIMIT, Recorder, WrongStep

STEPS = {
    "": frozenset({"waiting"}),
    "waiting": frozenset({"running", ""}),
    "running": frozenset({""}),
}
A, B = RoomKey(1, 1), RoomKey(2, 1)
FAILURE = Failure(Cause.PEER_DIED, "running", "p0")


def recorder(**limits: int) -> Recorder:
    return Recorder("d0", "decode", STEPS, **limits)


def told(ours: Recorder, key: RoomKey, failure: Failure | None = None, at_s: float = 0.0) -> None:
    ours.enter(key, "waiting", "request came", at_s)
    ours.leave(key, "over", at_s + 1.0, failure)


def test_a_story_has_a_line_for_each_step() -> None:
    ours = recorder()
    ours.enter(A, "waiting", "request came", 1.0, tokens=5)
    ours.enter(A, "running", "joined", 2.0, peer="p0")
    ours.leave(A, "text ended", 3.0, None)
    (story,) = ours.stories(1)
    assert [(line.at_s, line.left, line.entered) for line in story.lines] == [
        (1.0, "", "waiting"),
        (2.0, "waiting", "running"),
        (3.0, "running", ""),
    ]
    assert (story.instance, story.role, story.peer, story.open) == ("d0", "decode", "p0", False)


def test_a_step_that_the_table_does_not_allow_raises_with_the_story() -> None:
    ours = recorder()
    ours.enter(A, "waiting", "request came", 1.0)
    ours.enter(A, "running", "joined", 2.0)
    with pytest.raises(WrongStep, match=r"no step from 'running' to 'waiting'.*waiting>running"):
        ours.enter(A, "waiting", "again", 3.0)
    assert ours.stage(A) == "running"


def test_a_room_that_was_never_here_cannot_leave_or_begin_in_the_middle() -> None:
    ours = recorder()
    with pytest.raises(WrongStep, match="never here"):
        ours.leave(A, "over", 1.0, None)
    with pytest.raises(WrongStep, match="never here"):
        ours.enter(A, "running", "joined", 1.0)


def test_notes_change_no_stage_and_are_bounded() -> None:
    ours = recorder()
    ours.note(A, "nobody", 0.0)
    ours.enter(A, "waiting", "request came", 1.0)
    for _ in range(2 * LINES_LIMIT):
        ours.note(A, "chunk", 2.0, sent_bytes=7)
    (story,) = ours.stories(1)
    assert ours.stage(A) == "waiting"
    assert len(story.lines) == LINES_LIMIT
    assert story.lines[1].bytes == 7
    ours.leave(A, "over", 3.0, None)
    assert ours.stories(1)[0].lines[-1].entered == ""


def test_counts_name_every_stage() -> None:
    ours = recorder()
    ours.enter(A, "waiting", "request came", 1.0)
    assert ours.counts() == {"waiting": 1, "running": 0}


def test_good_and_failed_stories_are_kept_apart_and_bounded() -> None:
    ours = recorder(keep=2, keep_failed=1)
    told(ours, A, FAILURE)
    for room in range(10, 15):
        told(ours, RoomKey(room, 1))
    assert len(ours.stories(1)) == 1
    assert [len(ours.stories(room)) for room in range(10, 15)] == [0, 0, 0, 1, 1]
    told(ours, B, FAILURE)
    assert ours.stories(1) == []


def test_a_room_that_ends_again_is_the_newest() -> None:
    ours = recorder(keep=2)
    told(ours, A)
    told(ours, B)
    told(ours, A)
    told(ours, RoomKey(3, 1))
    assert ours.stories(2) == []
    assert len(ours.stories(1)) == 1


def test_the_stories_of_all_attempts_come_oldest_first() -> None:
    ours = recorder()
    told(ours, RoomKey(7, 1), FAILURE)
    ours.enter(RoomKey(7, 3), "waiting", "request came", 5.0)
    told(ours, RoomKey(7, 2))
    stories = ours.stories(7)
    assert [story.attempt for story in stories] == [1, 2, 3]
    assert [story.open for story in stories] == [False, False, True]
    assert stories[0].failure == FAILURE


def test_rows_show_open_rooms_then_the_last_ended_and_how_long_ago_each_came() -> None:
    ours = recorder()
    told(ours, A, FAILURE)
    told(ours, B)
    ours.enter(RoomKey(3, 1), "waiting", "request came", 4.0).prompt_tokens = 12
    rows = ours.rows(6.0)
    assert [(row.room, row.stage, row.age_s) for row in rows] == [
        (3, "waiting", 2.0),
        (2, "done", 6.0),
        (1, "failed", 6.0),
    ]
    assert rows[0].prompt_tokens == 12
    assert rows[2].failure == FAILURE


def test_so_many_ended_rows_are_shown_as_asked_for() -> None:
    ours = recorder()
    for room in range(1, 6):
        told(ours, RoomKey(room, 1))
    assert [row.room for row in ours.rows(9.0, ended=2)] == [5, 4]
    assert ours.rows(9.0, ended=0) == []


def test_facts_that_are_set_on_a_tale_are_in_its_story() -> None:
    ours = recorder()
    tale = ours.enter(A, "waiting", "request came", 1.0)
    tale.facts["transport"] = "tcp"
    tale.output_tokens = 4
    assert ours.tale(A) is tale
    (story,) = ours.stories(1)
    assert story.facts == {"transport": "tcp"}
    assert story.output_tokens == 4
    ours.leave(A, "over", 2.0, None)
    assert ours.tale(A) is None


def test_the_time_in_a_stage_is_kept_when_it_is_left() -> None:
    ours = recorder()
    ours.enter(A, "waiting", "request came", 1.0)
    ours.enter(A, "running", "joined", 1.5)
    assert {stage: times.sum_s for stage, times in ours.times.items()} == {"waiting": 0.5}
    ours.leave(A, "text ended", 4.5, None)
    told(ours, B, at_s=5.0)
    assert (ours.times["waiting"].sum_s, sum(ours.times["waiting"].counts)) == (1.5, 2)
    assert ours.times["running"].sum_s == 3.0
