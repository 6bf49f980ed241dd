"""What top shows."""

from __future__ import annotations

from pdctl.board import board_of
from tests.unit.pdctl.test_health import said, survey


def test_the_first_look_has_no_rates_and_the_second_has() -> None:
    first = board_of(survey(statuses={"d0": said("d0", counters={"output_tokens": 10})}), 1.0, None)
    assert first.tokens_per_s is None
    later = survey(statuses={"d0": said("d0", counters={"output_tokens": 60})})
    assert board_of(later, 3.0, first).tokens_per_s == 25.0


def test_a_daemon_that_began_anew_has_no_rate_yet() -> None:
    first = board_of(survey(statuses={"d0": said("d0", counters={"output_tokens": 10})}), 1.0, None)
    anew = survey(statuses={"d0": said("d0", epoch=9, counters={"output_tokens": 1})})
    assert board_of(anew, 3.0, first).tokens_per_s is None


def test_a_room_that_both_sides_have_is_counted_once() -> None:
    statuses = {"p0": said("p0", rooms={"inflight": 3}), "d0": said("d0", rooms={"transfer": 3})}
    board = board_of(survey(statuses=statuses), 1.0, None)
    assert board.rooms == 3


def test_a_silent_daemon_is_a_line_without_numbers() -> None:
    board = board_of(survey(statuses={"d0": said("d0")}), 1.0, None)
    p0 = next(line for line in board.lines if line.name == "p0")
    assert (p0.state, p0.stages, p0.kv_share, p0.queue) == ("silent", None, None, None)


def test_what_waits_is_the_queue() -> None:
    statuses = {"p0": said("p0", rooms={"waiting": 2, "forward": 1})}
    board = board_of(survey(statuses=statuses), 1.0, None)
    assert next(line.queue for line in board.lines if line.name == "p0") == 2
