"""The decode core computes a prompt by itself: the same texts, ends and deadlines, no prefill."""

from __future__ import annotations

from typing import Any

import pytest

from daemons.decode.scheduler import Scheduler
from daemons.engine.config import EngineConfig
from daemons.engine.step import Begin, End, Prepare, Prepared, Result, Run, StepDone, StepFailed
from daemons.kv.ledger import Owner
from daemons.protocol.causes import Cause
from daemons.protocol.generate import FinishReason, LookUp, Sampling, TokenOut
from daemons.runtime.commands import Send
from daemons.runtime.events import Cancelled, Draining, Finished, Stopping, Tick
from tests.support.cores import (
    CANCELLED,
    GUIDED,
    causes,
    decode_core,
    done,
    is_idle,
    key,
    of,
    submitted,
    told,
)

ENGINE = EngineConfig(page_size=4, chunk_tokens=4, batch_tokens=8)


def core_of(**settings: Any) -> Scheduler:
    return decode_core(**{"engine": ENGINE, **settings})


def alone(room: int = 1, tokens: int = 6, most: int = 3, **changes: Any) -> object:
    return submitted(room, tokens, most, prefill="d0", **changes)


def items(commands: list[Any]) -> list[tuple[int, tuple[int, ...], int]]:
    """Return room, tokens and start of each item of the only step."""
    (run,) = of(commands, Run)
    return [(item.key.room, item.tokens, item.start) for item in run.items]


def computed(room: int = 1) -> StepDone:
    """A chunk that was not the last."""
    return StepDone((Result(key(room)),))


def test_a_room_goes_from_request_to_its_last_token_without_a_prefill() -> None:
    core = core_of()
    commands = core.handle(alone(), 0.0)  # type: ignore[arg-type]
    assert of(commands, LookUp) == []
    assert [begin.sequence.output for begin in of(commands, Begin)] == [()]
    assert items(commands) == [(1, (1, 2, 3, 4), 0)]
    assert core.pages.owner(0) == (Owner.REQUEST, key())
    assert core.rows.free == core.rows.size
    commands = core.handle(computed(), 1.0)
    assert told(commands) == []
    assert items(commands) == [(1, (5, 6), 4)]
    commands = core.handle(done(1, token=8), 2.0)
    assert [[t.id for t in output.tokens] for output in told(commands)] == [[8]]
    assert of(commands, Begin) == []
    run, _ = of(commands, Run)
    assert [item.tokens for item in run.items] == [(8,)]
    commands = [*core.handle(done(1, token=9), 3.0), *core.handle(done(1, token=7), 4.0)]
    assert told(commands)[-1].finish is FinishReason.LENGTH
    assert of(commands, End) == [End(key())]
    assert of(commands, Send) == []
    (story,) = core.recorder.stories(1)
    assert [line.entered for line in story.lines if line.left != line.entered] == [
        "prealloc",
        "forward",
        "prebuilt",
        "running",
        "",
    ]
    assert story.peer == ""
    assert is_idle(core)


def test_running_rooms_go_first_and_prompts_have_the_rest_of_a_chunk() -> None:
    core = core_of()
    core.handle(alone(1, tokens=4, most=9), 0.0)  # type: ignore[arg-type]
    core.handle(done(1), 1.0)  # and a step ahead is queued
    assert of(core.handle(alone(2, tokens=9, most=2), 1.1), Run) == []  # type: ignore[arg-type]
    assert of(core.handle(done(1), 2.0), Run) == []  # nothing waits behind while prompts do
    assert items(core.handle(done(1), 3.0)) == [(1, (7,), 6), (2, (1, 2, 3, 4), 0)]


@pytest.mark.parametrize(
    ("token", "most", "finish"), [(5, 1, FinishReason.LENGTH), (999, 9, FinishReason.STOP)]
)
def test_the_first_token_may_be_the_last(token: int, most: int, finish: FinishReason) -> None:
    core = core_of()
    core.handle(alone(tokens=4, most=most), 0.0)  # type: ignore[arg-type]
    commands = core.handle(done(1, token=token), 1.0)
    assert [output.finish for output in told(commands)] == [finish]
    assert of(commands, End) == [End(key())]
    assert is_idle(core)


def test_log_probabilities_of_the_prompt_come_with_the_first_token() -> None:
    core = core_of()
    sampling = Sampling(max_tokens=2, prompt_logprobs=0)
    core.handle(alone(tokens=6, sampling=sampling), 0.0)  # type: ignore[arg-type]
    first, second = (TokenOut(1), TokenOut(2, -1.0)), (TokenOut(5, -2.0),)
    core.handle(StepDone((Result(key(), None, first),)), 1.0)
    (output,) = told(core.handle(StepDone((Result(key(), TokenOut(8), second),)), 2.0))
    assert output.prompt_logprobs == (*first, *second)


def test_where_it_is_not_allowed_a_room_is_refused() -> None:
    core = core_of(local_prefill=False)
    assert causes(core.handle(alone(), 0.0)) == [Cause.REQUEST_INVALID]  # type: ignore[arg-type]
    assert is_idle(core)


def test_a_cancel_while_a_chunk_is_computed_frees_the_pages_with_the_chunk() -> None:
    core = core_of()
    core.handle(alone(), 0.0)  # type: ignore[arg-type]
    commands = core.handle(Cancelled(key(), CANCELLED), 0.5)
    assert causes(commands) == [CANCELLED.cause]
    assert of(commands, End) == []
    assert core.pages.free < core.pages.size
    commands = core.handle(computed(), 1.0)
    assert told(commands) == []
    assert of(commands, End) == [End(key())]
    assert is_idle(core)


@pytest.mark.parametrize(
    "event",
    [
        StepFailed((key(),), "no memory"),
        StepDone((Result(key(), error="too long"),)),
    ],
)
def test_a_forward_that_breaks_fails_the_room_in_its_stage(event: Any) -> None:
    core = core_of()
    core.handle(alone(), 0.0)  # type: ignore[arg-type]
    (output,) = told(core.handle(event, 1.0))
    assert output.failure is not None
    assert (output.failure.cause, output.failure.stage) == (Cause.ENGINE_FAILED, "forward")
    assert is_idle(core)


def test_a_last_chunk_without_a_token_fails_its_room() -> None:
    core = core_of()
    core.handle(alone(tokens=4), 0.0)  # type: ignore[arg-type]
    assert causes(core.handle(computed(), 1.0)) == [Cause.ENGINE_FAILED]
    assert is_idle(core)


def test_a_room_waits_for_memory_with_a_deadline_and_for_no_prefill() -> None:
    core = core_of(pages=4)
    core.handle(alone(1, tokens=8, most=9), 0.0)  # type: ignore[arg-type]
    core.handle(alone(2, tokens=8, most=2), 0.0)  # type: ignore[arg-type]
    assert core.recorder.stage(key(2)) == "prealloc"
    core.handle(computed(), 11.9)
    assert causes(core.handle(Tick(), 19.9)) == []  # handshake_s is 10
    assert causes(core.handle(Tick(), 20.0)) == [Cause.QUEUE_TIMEOUT]


def test_a_forward_that_stands_still_ends_after_a_while() -> None:
    core = core_of()
    core.handle(alone(), 0.0)  # type: ignore[arg-type]
    core.handle(computed(), 11.0)
    assert causes(core.handle(Tick(), 22.9)) == []
    (output,) = told(core.handle(Tick(), 23.0))
    assert output.failure is not None
    assert (output.failure.cause, output.failure.peer) == (Cause.PROGRESS_TIMEOUT, "d0")
    core.handle(done(1), 24.0)
    assert is_idle(core)


def test_a_client_that_lost_patience_ends_a_forward() -> None:
    core = core_of()
    core.handle(alone(timeout_s=5.0), 0.0)  # type: ignore[arg-type]
    assert causes(core.handle(Tick(), 5.0)) == [Cause.TOTAL_TIMEOUT]


def test_a_draining_decode_ends_its_prompts_and_takes_no_others() -> None:
    core = core_of()
    core.handle(alone(tokens=4, most=1), 0.0)  # type: ignore[arg-type]
    core.handle(Draining(on=True), 0.1)
    assert causes(core.handle(alone(2), 0.2)) == [Cause.INSTANCE_DRAINING]  # type: ignore[arg-type]
    assert [output.finish for output in told(core.handle(done(1), 1.0))] == [FinishReason.LENGTH]
    assert is_idle(core)


def test_a_stop_ends_prompts_too() -> None:
    core = core_of()
    core.handle(alone(), 0.0)  # type: ignore[arg-type]
    assert causes(core.handle(Stopping(), 0.1)) == [Cause.INSTANCE_STOPPING]


def test_a_stop_string_in_the_first_token_ends_a_room_as_elsewhere() -> None:
    core = core_of()
    core.handle(alone(tokens=4, most=9), 0.0)  # type: ignore[arg-type]
    core.handle(done(1), 1.0)
    core.handle(Finished(key()), 1.1)
    core.handle(done(1), 2.0)
    assert told(core.handle(done(1), 3.0)) == []
    assert is_idle(core)


def test_it_needs_no_row() -> None:
    core = core_of(rows=1)
    core.rows.take(key(9), 1, Owner.REQUEST)
    core.handle(alone(), 0.0)  # type: ignore[arg-type]
    assert core.recorder.stage(key()) == "forward"


def test_a_room_whose_grammar_is_compiled_still_is_not_computed_until_it_is_there() -> None:
    core = core_of()
    commands = core.handle(alone(sampling=GUIDED), 0.0)  # type: ignore[arg-type]
    assert len(of(commands, Prepare)) == 1
    assert of(commands, Run) == []
    assert items(core.handle(Prepared(key()), 1.0)) == [(1, (1, 2, 3, 4), 0)]
