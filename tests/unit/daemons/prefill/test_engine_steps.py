"""Steps of the engine, through the whole core."""

from __future__ import annotations

from daemons.engine.config import EngineConfig
from daemons.engine.step import Begin, End, Prepare, Prepared, Run, StepFailed
from daemons.prefill.commands import WriteKV
from daemons.prefill.events import WriteDone, WriteSkipped
from daemons.protocol.causes import Cause
from daemons.protocol.generate import Sampling
from daemons.runtime.events import Cancelled, Tick
from tests.support.cores import (
    CANCELLED,
    GUIDED,
    came,
    causes,
    destination,
    done,
    is_idle,
    key,
    of,
    submitted,
    told,
)
from tests.support.prefill_scenes import heard, in_forward, layered, paired


def test_prompt_log_probabilities_are_told_when_asked_for() -> None:
    core = paired()
    core.handle(submitted(tokens=2, sampling=Sampling(prompt_logprobs=1)), 0.0)
    core.handle(came(destination(tokens=2)), 0.0)
    (output,) = told(core.handle(done(1), 1.0))
    assert output.prompt_logprobs == ()
    assert told(core.handle(WriteDone(key(), 1), 2.0))[0].prompt_logprobs is None


def test_at_most_one_forward_is_under_way() -> None:
    core = in_forward()
    core.handle(submitted(2), 1.0)
    assert of(core.handle(came(destination(2)), 1.0), Run) == []
    ((first, second),) = (run.items for run in of(core.handle(done(1, token=0), 2.0), Run))
    assert (first.key, second.key) == (key(1), key(2))


def test_a_room_waits_for_memory_and_comes_before_later_ones() -> None:
    core = paired(pages=3)
    for room, tokens in ((1, 8), (2, 8), (3, 4)):
        core.handle(submitted(room, tokens), 0.0)
        core.handle(came(destination(room, tokens)), 0.0)
    assert core.recorder.counts() == {"bootstrap": 0, "waiting": 2, "forward": 1, "inflight": 0}
    commands = core.handle(Cancelled(key(2), CANCELLED), 1.0)
    assert [begin.sequence.key for begin in of(commands, Begin)] == [key(3)]


def test_one_room_of_a_forward_may_fail_alone() -> None:
    core = paired()
    for room in (1, 2):
        core.handle(submitted(room, 4), 0.0)
        core.handle(came(destination(room, 4)), 0.0)
    core.handle(done(1), 1.0)
    commands = core.handle(done(2, error="bad sampling"), 2.0)
    assert causes(commands) == [Cause.ENGINE_FAILED]
    assert of(commands, End) == [End(key(2))]
    assert core.recorder.stage(key(1)) == "inflight"


def test_a_forward_that_breaks_fails_all_its_rooms_and_the_next_one_runs() -> None:
    core = in_forward()
    core.handle(submitted(2, 4), 0.5)
    core.handle(came(destination(2, 4)), 0.5)
    commands = core.handle(StepFailed((key(1),), "out of memory"), 1.0)
    assert causes(commands) == [Cause.ENGINE_FAILED]
    ((item,),) = (run.items for run in of(commands, Run))
    assert item.key == key(2)


def test_a_prompt_that_ends_without_a_token_fails_and_holds_up_nobody() -> None:
    core = in_forward(tokens=4)
    core.handle(submitted(2, 4), 0.5)
    core.handle(came(destination(2, 4)), 0.5)
    commands = core.handle(done(1, token=0), 1.0)
    assert causes(commands) == [Cause.ENGINE_FAILED]
    assert of(commands, WriteKV) == []
    assert [item.key for run in of(commands, Run) for item in run.items] == [key(2)]


def test_a_forward_that_stands_still_fails_its_rooms_and_the_blame_is_ours() -> None:
    core = paired(engine=EngineConfig(page_size=4, chunk_tokens=4, batch_tokens=4))
    for room in (1, 2):
        core.handle(submitted(room), 0.0)
        core.handle(came(destination(room)), 0.0)
    core.handle(done(1, token=0), 11.0)  # room 2 is behind it in the queue
    heard(core, 22.9)
    assert causes(core.handle(Tick(), 22.9)) == []
    failures = [output.failure for output in told(core.handle(Tick(), 23.0))]
    assert [(f.cause, f.stage, f.peer) for f in failures if f] == [
        (Cause.PROGRESS_TIMEOUT, "forward", "p0")
    ] * 2
    assert core.pages.free < core.pages.size  # the engine may still write
    core.handle(done(1, 2), 24.0)
    core.handle(WriteSkipped(key(1)), 24.0)
    assert is_idle(core)


def test_a_broken_forward_is_the_first_cause_whichever_end_is_told_first() -> None:
    core = layered()
    assert causes(core.handle(WriteSkipped(key()), 1.0)) == []
    commands = core.handle(StepFailed((key(),), "no memory"), 1.0)
    assert causes(commands) == [Cause.ENGINE_FAILED]
    assert is_idle(core)
    assert core.doubts.known == {}


def test_a_chunk_that_was_not_sent_fails_the_room_although_it_was_computed() -> None:
    core = layered()
    core.handle(WriteSkipped(key()), 1.0)
    commands = core.handle(done(1, token=0), 1.0)
    assert causes(commands) == [Cause.TRANSFER_FAILED]
    assert is_idle(core)


def test_a_room_whose_grammar_is_compiled_still_lets_others_go_first() -> None:
    core = paired()
    commands = core.handle(submitted(1, sampling=GUIDED), 0.0)
    assert of(commands, Prepare) == [Prepare(key(1), GUIDED.grammar)]  # type: ignore[arg-type]
    assert of(core.handle(came(destination(1)), 0.0), Begin) == []
    core.handle(submitted(2, tokens=3), 0.0)
    commands = core.handle(came(destination(2, tokens=3)), 0.0)
    assert [begin.sequence.key for begin in of(commands, Begin)] == [key(2)]
    commands = core.handle(Prepared(key(1)), 1.0)
    assert [begin.sequence.key for begin in of(commands, Begin)] == [key(1)]
