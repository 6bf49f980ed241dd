"""Stories of several daemons become one waterfall."""

from __future__ import annotations

import msgspec
import pytest

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.story import Line, RoomRow, Story
from pdctl.merge import Summary, attempts, summaries, waterfall
from tests.support.stories import DECODE, LB, PREFILL, ROOM, ended


def spans(stories: list[Story]) -> dict[str, tuple[float, float]]:
    seen = waterfall(stories, 200.0)
    return {span.name: (round(span.begin_s, 3), round(span.end_s, 3)) for span in seen.spans}


def test_each_stage_of_each_daemon_is_a_span_after_the_first_line() -> None:
    assert spans([LB, PREFILL, DECODE]) == {
        "lb.dispatch": (0.0, 0.25),
        "p.bootstrap": (0.01, 0.03),
        "d.prealloc": (0.01, 0.02),
        "d.transfer": (0.02, 0.24),
        "p.waiting": (0.03, 0.04),
        "p.forward": (0.04, 0.2),
        "kv.write": (0.1, 0.23),
        "p.inflight": (0.2, 0.23),
        "d.prebuilt": (0.24, 0.245),
        "d.running": (0.245, 0.9),
        "lb.stream": (0.25, 1.0),
    }


def test_spans_come_in_the_order_of_their_begin() -> None:
    begins = [span.begin_s for span in waterfall([DECODE, PREFILL, LB], 200.0).spans]
    assert begins == sorted(begins)


def test_the_head_names_pair_sizes_and_outcome() -> None:
    seen = waterfall([LB, PREFILL, DECODE], 200.0)
    assert (seen.room, seen.attempt, seen.outcome) == (ROOM, 1, "ok")
    assert (seen.prefill, seen.decode) == ("p0", "d0")
    assert (seen.prompt_tokens, seen.cached_tokens, seen.output_tokens) == (4096, 1024, 212)
    assert seen.total_s == pytest.approx(1.0)
    assert seen.ttft_s == pytest.approx(0.25)
    assert seen.remarks == ()


def test_the_longest_part_is_no_span_that_only_waits_for_others() -> None:
    longest = waterfall([LB, PREFILL, DECODE], 200.0).longest
    assert longest is not None
    assert longest.name == "p.forward"


def test_the_wire_tells_bytes_speed_and_what_hid_behind_the_forward() -> None:
    (wire,) = [s for s in waterfall([PREFILL], 200.0).spans if s.name == "kv.write"]
    assert wire.note == "4.0 MiB at 84 MB/s, 75% behind the forward"


def test_what_waited_for_the_forward_is_not_called_slow() -> None:
    told = msgspec.structs.replace(PREFILL, facts={"overlap_fraction": "0.000"})
    (wire,) = [s for s in waterfall([told], 200.0).spans if s.name == "kv.write"]
    assert wire.note == "4.0 MiB, 0% behind the forward"


def test_the_wire_tells_what_carried_the_bytes_and_why_it_was_not_cma() -> None:
    why = "tcp (not cma: it runs on another host)"
    told = msgspec.structs.replace(PREFILL, facts=PREFILL.facts | {"transport": why})
    (wire,) = [s for s in waterfall([told], 200.0).spans if s.name == "kv.write"]
    assert wire.note.startswith(f"4.0 MiB by {why} at 84 MB/s")


def test_chunks_of_the_forward_are_counted() -> None:
    (forward,) = [s for s in waterfall([PREFILL], 200.0).spans if s.name == "p.forward"]
    assert forward.note == "2 chunks"


def test_the_reason_of_the_pick_stands_at_the_dispatch() -> None:
    (dispatch,) = [s for s in waterfall([LB], 200.0).spans if s.name == "lb.dispatch"]
    assert dispatch.note == "least rooms"


def test_a_room_that_goes_on_has_an_open_span_up_to_now() -> None:
    going_on = Story(ROOM, 1, "p0", "prefill", PREFILL.lines[:3], True, 10)
    seen = waterfall([going_on], 105.0)
    assert seen.outcome == "open"
    assert [span.name for span in seen.spans if span.is_open] == ["p.forward"]
    assert seen.total_s == pytest.approx(105.0 - 100.01)


def test_the_first_cause_is_of_the_leg_that_failed_first() -> None:
    first = Failure(Cause.PEER_DIED, "transfer", "p0", "its port refuses connections")
    later = Failure(Cause.LB_TIMEOUT, "dispatch")
    seen = waterfall([ended(LB, later, 100.9), ended(DECODE, first, 100.5)], 200.0)
    assert (seen.outcome, seen.first_cause, seen.first_leg) == ("failed", first, "d0")


def test_what_only_follows_from_another_failure_is_never_the_first_cause() -> None:
    twin = Failure(Cause.LB_TWIN_FAILED, "dispatch", "d0")
    real = Failure(Cause.ENGINE_FAILED, "running", "d0", "out of memory")
    seen = waterfall([ended(LB, twin, 100.3), ended(DECODE, real, 100.5)], 200.0)
    assert seen.first_cause == real


def test_every_leg_says_where_and_how_it_ended() -> None:
    failure = Failure(Cause.TRANSFER_FAILED, "inflight", "d0", "cut")
    legs = waterfall([LB, ended(PREFILL, failure, 100.4)], 200.0).legs
    assert [(leg.instance, leg.stage, leg.failure) for leg in legs] == [
        ("lb", "stream", None),
        ("p0", "inflight", failure),
    ]


def test_a_missing_daemon_is_remarked_and_named_by_the_others() -> None:
    seen = waterfall([LB, PREFILL], 200.0)
    assert seen.decode == "d0"
    assert seen.remarks == ("no decode knows this room (any more)",)
    assert waterfall([LB], 200.0).prefill == "p0"


def test_clocks_that_cannot_be_right_are_remarked() -> None:
    early = Story(
        ROOM,
        1,
        "d0",
        "decode",
        tuple(Line(99.9, "", "prealloc", "request came") for _ in "x"),
        True,
    )
    assert (
        "a worker began 100.0 ms before lb: their clocks differ"
        in waterfall([LB, PREFILL, early], 200.0).remarks
    )


def test_stories_of_two_attempts_are_not_one_waterfall() -> None:
    second = Story(ROOM, 2, "p0", "prefill", PREFILL.lines, False)
    with pytest.raises(ValueError, match="2 attempts"):
        waterfall([PREFILL, second], 200.0)
    assert attempts([second, PREFILL]) == {1: [PREFILL], 2: [second]}


def test_no_lines_are_no_waterfall() -> None:
    with pytest.raises(ValueError, match="0 attempts"):
        waterfall([Story(ROOM, 1, "p0", "prefill", (), True)], 200.0)


def row(stage: str, age_s: float, room: int = ROOM, failure: Failure | None = None) -> RoomRow:
    return RoomRow(room, 1, stage, age_s, "", 10, 3, failure)


def test_rows_of_one_room_are_one_summary() -> None:
    (one,) = summaries({"p0": [row("done", 1.0)], "d0": [row("running", 2.0)]})
    assert one == Summary(ROOM, 1, "open", {"p0": "done", "d0": "running"}, 2.0, 10, 3, None)


def test_a_failed_leg_fails_the_room_with_the_real_cause() -> None:
    twin = Failure(Cause.PEER_ABORTED, "inflight", "d0")
    real = Failure(Cause.CLIENT_DISCONNECTED, "stream")
    (one,) = summaries({"p0": [row("failed", 1, ROOM, twin)], "lb": [row("failed", 1, ROOM, real)]})
    assert (one.state, one.failure) == ("failed", real)


def test_a_worker_whose_request_pd_lb_cancelled_does_not_tell_the_cause() -> None:
    cancelled = Failure(Cause.CLIENT_DISCONNECTED, "submitted")
    real = Failure(Cause.LB_WORKER_GONE, "dispatch", "p0", "no connection")
    rows = {"d0": [row("failed", 1, ROOM, cancelled)], "lb": [row("failed", 1, ROOM, real)]}
    (one,) = summaries(rows)
    assert one.failure == real


def test_open_rooms_come_first_then_the_youngest() -> None:
    rows = [row("done", 5, 1), row("done", 3, 2), row("waiting", 9, 3)]
    assert [one.room for one in summaries({"p0": rows})] == [3, 2, 1]


def test_the_leg_in_whose_stage_it_broke_is_to_blame_though_another_one_ended_before() -> None:
    failure = Failure(Cause.TRANSFER_FAILED, "inflight", "d0", "cut")
    seen = waterfall([LB, ended(PREFILL, failure, 100.4), ended(DECODE, failure, 100.3)], 101.0)
    assert seen.first_leg == "p0"
