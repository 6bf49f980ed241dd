from __future__ import annotations

from typing import Any

from daemons.lb.fleet import Pair, Pick, Worker
from daemons.lb.metrics import Metrics
from daemons.lb.order import read_order
from daemons.lb.stories import STEPS, Telling
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.topology import Role, State
from daemons.runtime.log import logger
from daemons.runtime.recorder import Recorder

PAIR = Pair(
    Worker("p0", Role.PREFILL, 1, State.READY, "h", 1),
    Worker("d0", Role.DECODE, 1, State.READY, "h", 1),
)


def telling(recorder: Recorder, rooms: list[int], **fields: Any) -> tuple[Telling, list[float]]:
    now = [100.0]
    order = read_order("/generate", b'{"text": "a"}', 10)
    told = Telling(
        order,
        Pick(PAIR, "least rooms: p0 0, d0 0"),
        rooms,
        recorder,
        Metrics(),
        logger(),
        clock=lambda: now[0],
        wall=lambda: now[0] + 1000.0,
        **fields,
    )
    return told, now


def new_recorder() -> Recorder:
    return Recorder("lb", "lb", STEPS)


def test_a_good_stream_is_told_from_dispatch_to_its_end() -> None:
    recorder = new_recorder()
    told, now = telling(recorder, [7])
    now[0] = 101.0
    told.began()
    told.prefill_ended("done")
    now[0] = 103.0
    told.ended(200, None)
    (story,) = recorder.stories(7)
    assert [line.entered for line in story.lines] == ["dispatch", "stream", "stream", ""]
    assert [line.at_s for line in story.lines] == [1100.0, 1101.0, 1101.0, 1103.0]
    assert (story.open, story.failure, story.peer) == (False, None, "p0 -> d0")
    assert story.facts["why"] == "least rooms: p0 0, d0 0"
    assert (story.facts["prefill"], story.facts["decode"]) == ("p0", "d0")
    assert told.first_s == 1.0


def test_a_failure_is_kept_with_each_room_of_a_batch() -> None:
    recorder = new_recorder()
    told, _ = telling(recorder, [7, 8])
    assert recorder.counts() == {"dispatch": 2, "stream": 0}
    failure = Failure(Cause.LB_WORKER_GONE, "dispatch", "d0")
    told.ended(502, failure)
    assert recorder.counts() == {"dispatch": 0, "stream": 0}
    assert [recorder.stories(room)[0].failure for room in (7, 8)] == [failure, failure]
    assert (told.metrics.served, told.metrics.failed) == (1, 1)


def test_prefills_leg_may_end_after_the_story() -> None:
    recorder = new_recorder()
    told, _ = telling(recorder, [7])
    told.ended(200, None)
    told.prefill_ended("cancelled")
    assert [line.entered for line in recorder.stories(7)[0].lines] == ["dispatch", ""]


def test_a_try_that_was_given_up_is_a_story_of_its_own() -> None:
    recorder = new_recorder()
    told, _ = telling(recorder, [7])
    failure = Failure(Cause.PEER_DIED, "transfer", "p0")
    told.given_up(failure)
    again, _ = telling(recorder, [8], attempt=2, retry_of="07")
    again.began()
    again.first_token("decode")
    again.ended(200, None)
    (first,), (second,) = recorder.stories(7), recorder.stories(8)
    assert (first.attempt, first.failure, first.lines[-1].because) == (1, failure, "retried")
    assert (second.attempt, second.failure, second.facts["retry_of"]) == (2, None, "07")
    assert (told.metrics.retries, told.metrics.served, again.metrics.served) == (1, 0, 1)


def test_a_decode_alone_is_told_as_such() -> None:
    recorder = new_recorder()
    order = read_order("/generate", b'{"text": "a"}', 10)
    pick = Pick(Pair(None, PAIR.decode), "local prefill, no prefill is ready; d0 fewest rooms: 0")
    Telling(order, pick, [7], recorder, Metrics(), logger())
    (story,) = recorder.stories(7)
    assert (story.peer, story.facts["local_prefill"]) == ("d0 alone", "true")
    assert story.facts["prefill"] == ""
