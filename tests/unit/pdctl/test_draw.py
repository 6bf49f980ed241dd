"""A waterfall in text."""

from __future__ import annotations

import msgspec
import pytest

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.story import Line, Story
from pdctl.draw import BAR_CELLS, bar, waterfall_lines
from pdctl.merge import waterfall
from tests.support.stories import DECODE, LB, PREFILL, ROOM, ended


def lines(*stories: Story) -> list[str]:
    return [words for words, _ in waterfall_lines(waterfall(list(stories), 101.5))]


@pytest.mark.parametrize(
    ("begin", "end", "drawn"),
    [
        (0, 1, "████"),
        (0, 0, "▏"),
        (0.5, 0.75, "  █"),
        (0.5, 0.625, "  ▌"),
        (1, 1, "   ▏"),
        (0.75, 2, "   █"),
    ],
)
def test_a_bar_lies_in_its_place_and_is_never_nothing(begin: float, end: float, drawn: str) -> None:
    assert bar(begin, end, 4) == drawn


def test_no_bar_is_wider_than_the_picture() -> None:
    for first in range(0, 101, 7):
        for last in range(first, 101, 7):
            assert 0 < len(bar(first / 100, last / 100)) <= BAR_CELLS


def test_a_good_room_has_a_head_its_spans_and_a_verdict() -> None:
    seen = lines(LB, PREFILL, DECODE)
    assert seen[0] == (
        f"room {ROOM:014x}"[:13]
        + " (attempt 1)  p0 -> d0  prompt 4096 (1024 cached)  output 212  ok"
    )
    assert seen[1].split() == ["lb.dispatch", "250.0", "ms", "|████████", "least", "rooms"]
    assert seen[-1] == "TTFT 250 ms; the longest part is p.forward (64%)"
    assert len(seen) == 13


def test_a_decode_that_had_no_prefill_stands_alone() -> None:
    told = (Line(1.0, "", "forward", "request came"), Line(2.0, "forward", "prebuilt", "computed"))
    alone = msgspec.structs.replace(DECODE, lines=told, peer="")
    assert "  d0 alone  prompt" in lines(alone)[0]


def test_bars_of_all_spans_begin_in_one_column() -> None:
    columns = {line.index("|") for line in lines(LB, PREFILL, DECODE) if "|" in line}
    assert len(columns) == 1


def test_a_failed_room_says_where_who_why_and_how_each_leg_ended() -> None:
    real = Failure(Cause.TRANSFER_FAILED, "inflight", "d0", "connection reset")
    twin = Failure(Cause.LB_TWIN_FAILED, "stream", "p0")
    seen = lines(ended(LB, twin, 100.6), ended(PREFILL, real, 100.5), DECODE)
    assert "failed in inflight of p0 after 500 ms, peer d0" in seen
    assert "first cause: transfer.failed: connection reset" in seen
    assert (
        " p0: left inflight after 500 ms, transfer.failed in inflight (d0): connection reset"
        in seen
    )
    assert " lb: left stream after 600 ms, lb.twin_failed in stream (p0)" in seen
    assert " d0: left running after 900 ms, length" in seen


def test_an_open_room_says_that_it_goes_on() -> None:
    seen = lines(Story(ROOM, 1, "p0", "prefill", PREFILL.lines[:3], True, 10))
    assert [line for line in seen if "still there" in line and "p.forward" in line]
    assert "not over yet" in seen
    assert "note: no lb knows this room (any more)" in seen
