"""Steps of the engine, one after the other and one ahead, through the whole core."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from daemons.decode.events import Retract, RowRead
from daemons.decode.scheduler import Scheduler
from daemons.engine.config import EngineConfig
from daemons.engine.step import NEWEST, Begin, End, Item, Keep, Prepare, Prepared, Run, StepFailed
from daemons.kv.ledger import Owner
from daemons.protocol.causes import Cause
from daemons.protocol.generate import FinishReason, TokenOut
from daemons.protocol.metadata import Row, RowState
from daemons.protocol.status import Status
from daemons.runtime.events import Cancelled, Finished
from tests.support.cores import (
    CANCELLED,
    GUIDED,
    answer,
    came,
    causes,
    decode_core,
    done,
    is_idle,
    key,
    of,
    progress,
    route,
    submitted,
    told,
)
from tests.support.decode_scenes import SUCCESS, paired, row_read, running

ENGINE = EngineConfig(page_size=4)


def joined(core: Scheduler, room: int = 1, tokens: int = 6, most: int = 9) -> list[Any]:
    """Let a room come to the batch with 5 as its first token; returns the last commands."""
    core.handle(submitted(room, tokens, most), 0.0)
    core.handle(route(), 0.0)
    core.handle(came(answer()), 0.0)
    core.handle(came(progress(Status.SUCCESS, room)), 1.0)
    row = Row(key(room), TokenOut(5), 0)
    return core.handle(RowRead(key(room), RowState.RIGHT, row), 1.0)


def core_of(**settings: Any) -> Scheduler:
    return decode_core(**{"engine": ENGINE, **settings})


def steps(commands: list[Any]) -> list[tuple[Item, ...]]:
    return [run.items for run in of(commands, Run)]


# --- a second step waits behind the one that runs ---


def test_the_step_ahead_goes_on_from_what_the_one_before_chooses() -> None:
    core = core_of()
    (now,), (ahead,) = steps(joined(core))
    assert (now.tokens, now.start, now.pages) == ((5,), 6, (0, 1))
    assert (ahead.tokens, ahead.start, ahead.pages) == ((NEWEST,), 7, (0, 1))
    commands = core.handle(done(1, token=8), 2.0)
    assert [[t.id for t in output.tokens] for output in told(commands)] == [[8]]
    ((third,),) = steps(commands)
    assert (third.tokens, third.start, third.pages) == ((NEWEST,), 8, (0, 1, 2))
    assert core.pages.owner(2) == (Owner.REQUEST, key())


def test_no_more_than_two_steps_are_under_way() -> None:
    core = core_of()
    joined(core)
    assert steps(joined(core, 2)) == []
    ((one, two),) = steps(core.handle(done(1), 2.0))
    assert (one.tokens, two.tokens) == ((NEWEST,), (5,))


def test_without_steps_ahead_the_next_one_waits_for_the_answer() -> None:
    core = core_of(engine=EngineConfig(page_size=4, steps_ahead=0))
    assert len(steps(joined(core))) == 1
    ((item,),) = steps(core.handle(done(1, token=8), 2.0))
    assert item.tokens == (8,)


def test_a_text_whose_last_token_is_under_way_is_not_stepped_again() -> None:
    core = core_of()
    assert len(steps(joined(core, most=3))) == 2
    assert steps(core.handle(done(1), 2.0)) == []
    commands = core.handle(done(1), 3.0)
    assert [output.finish for output in told(commands)] == [FinishReason.LENGTH]
    assert is_idle(core)


def test_pages_of_a_text_that_ended_are_free_with_the_step_ahead_whose_token_nobody_sees() -> None:
    core = core_of()
    joined(core)
    commands = core.handle(done(1, token=999), 2.0)
    assert [output.finish for output in told(commands)] == [FinishReason.STOP]
    assert of(commands, End) == []
    assert core.pages.free < core.pages.size
    commands = core.handle(done(1, token=7), 3.0)
    assert told(commands) == []
    assert of(commands, End) == [End(key())]
    assert core.counters["output_tokens"] == 1
    assert is_idle(core)


def test_what_an_engine_says_of_a_step_after_the_end_is_no_failure() -> None:
    core = core_of()
    joined(core)
    core.handle(done(1, token=999), 2.0)
    assert told(core.handle(done(1, error="its text has ended"), 3.0)) == []
    assert core.recorder.stories(1)[0].failure is None


@pytest.mark.parametrize("event", [Cancelled(key(), CANCELLED), Finished(key())])
def test_a_room_that_is_given_up_keeps_its_pages_until_both_steps_are_done(event: Any) -> None:
    core = core_of()
    joined(core)
    core.handle(event, 1.5)
    for now in (2.0, 3.0):
        assert core.pages.free < core.pages.size
        assert told(core.handle(done(1), now)) == []
    assert is_idle(core)


def test_a_step_that_breaks_fails_its_rooms_and_the_one_behind_it_ends_them() -> None:
    core = core_of()
    joined(core)
    joined(core, 2)
    core.handle(done(1), 2.0)
    assert causes(core.handle(StepFailed((key(1),), "broke"), 3.0)) == [Cause.ENGINE_FAILED]
    assert core.pages.free < core.pages.size
    commands = core.handle(done(1, 2), 4.0)
    assert [output.room for output in told(commands)] == [2]
    assert of(commands, End) == [End(key(1))]


def test_a_room_that_breaks_alone_is_told_once() -> None:
    core = core_of()
    joined(core)
    assert causes(core.handle(done(1, error="broke"), 2.0)) == [Cause.ENGINE_FAILED]
    assert told(core.handle(done(1, error="no token was chosen for position 7"), 3.0)) == []
    assert is_idle(core)


def test_while_a_page_is_short_no_step_waits_until_somebody_has_left() -> None:
    core = core_of(pages=4, retract_tokens=64)
    queued = deque(steps(joined(core, 1, tokens=4)) + steps(joined(core, 2, tokens=4)))
    keeps: list[Keep] = []
    while not keeps:
        items = queued.popleft()
        commands = core.handle(done(*(item.key.room for item in items)), 2.0)
        keeps = of(commands, Keep)
        assert not keeps or not queued
        queued += steps(commands)
    assert [keep.key for keep in keeps] == [key(2)]
    assert core.pages.free == 0


def test_a_room_is_retracted_when_no_step_is_under_way_with_all_its_tokens() -> None:
    core = core_of(retract_tokens=64)
    joined(core)
    assert of(core.handle(Retract(key()), 1.1), Keep) == []
    commands = core.handle(done(1, token=7), 2.0)
    assert steps(commands) == []
    assert of(commands, Keep) == []
    commands = core.handle(done(1, token=8), 3.0)
    assert of(commands, Keep) == [Keep(key(), (0, 1))]
    assert core.stages.retracted.rooms[key()].output == [5, 7, 8]


def test_pages_are_taken_as_the_text_grows() -> None:
    core = paired()
    core.handle(submitted(tokens=4, most=6), 0.0)
    core.handle(came(SUCCESS), 1.0)
    ((item,),) = (run.items for run in of(core.handle(row_read(), 1.0), Run))
    assert item.pages == (0, 1)
    for step in range(3):
        core.handle(done(1), 2.0 + step)
    assert core.pages.free == 6
    core.handle(done(1), 6.0)
    assert core.counters["output_tokens"] == 4


def test_rooms_join_the_batch_between_steps() -> None:
    core = running(most=9)
    core.handle(submitted(2), 1.0)
    core.handle(came(progress(Status.SUCCESS, 2)), 1.0)
    assert of(core.handle(row_read(2), 1.0), Run) == []
    ((one, two),) = (run.items for run in of(core.handle(done(1), 2.0), Run))
    assert (one.key, two.key) == (key(1), key(2))


def test_a_batch_has_so_many_rooms_at_most() -> None:
    core = paired(engine=EngineConfig(page_size=4, batch_rooms=1))
    for room in (1, 2):
        core.handle(submitted(room, most=2), 0.0)
        core.handle(came(progress(Status.SUCCESS, room)), 1.0)
        core.handle(row_read(room), 1.0)
    assert core.recorder.stage(key(2)) == "prebuilt"
    ((item,),) = (run.items for run in of(core.handle(done(1), 2.0), Run))
    assert item.key == key(2)


def test_one_room_of_a_step_may_fail_alone() -> None:
    core = running()
    commands = core.handle(done(1, error="bad sampling"), 2.0)
    assert causes(commands) == [Cause.ENGINE_FAILED]
    assert is_idle(core)


def test_a_step_without_a_token_fails_the_room() -> None:
    core = running()
    assert causes(core.handle(done(1, token=0), 2.0)) == [Cause.ENGINE_FAILED]


def test_a_step_that_breaks_fails_its_rooms_and_those_that_wait_run() -> None:
    core = running()
    core.handle(submitted(2), 1.0)
    core.handle(came(progress(Status.SUCCESS, 2)), 1.0)
    core.handle(row_read(2), 1.0)
    commands = core.handle(StepFailed((key(1),), "out of memory"), 2.0)
    assert causes(commands) == [Cause.ENGINE_FAILED]
    ((item,),) = (run.items for run in of(commands, Run))
    assert item.key == key(2)


def test_a_room_that_was_over_ends_with_the_step_that_breaks_as_it_was() -> None:
    core = running()
    core.handle(Finished(key()), 1.5)
    assert causes(core.handle(StepFailed((key(1),), "broke"), 2.0)) == []
    assert core.recorder.stories(1)[0].failure is None
    assert is_idle(core)


def test_a_grammar_is_compiled_from_the_request_on_and_holds_back_its_own_room_only() -> None:
    core = paired()
    commands = core.handle(submitted(1, sampling=GUIDED), 0.0)
    assert of(commands, Prepare) == [Prepare(key(1), GUIDED.grammar)]  # type: ignore[arg-type]
    assert of(core.handle(submitted(2), 0.0), Prepare) == []
    for room in (1, 2):
        core.handle(came(progress(Status.SUCCESS, room)), 1.0)
        commands = core.handle(row_read(room=room), 1.0)
        assert [begin.sequence.key for begin in of(commands, Begin)] == [key(room)]
    ((item,),) = (run.items for run in of(commands, Run))
    assert item.key == key(2)
    assert of(core.handle(Prepared(key(1)), 2.0), Run) == []  # a step is under way
    (run,) = of(core.handle(done(2, token=8), 3.0), Run)
    assert {item.key for item in run.items} == {key(1), key(2)}
