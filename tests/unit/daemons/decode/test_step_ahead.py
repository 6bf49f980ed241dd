"""A second step waits behind the one that runs, and nothing that it brings too late is told."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from daemons.decode.events import Retract, RowRead
from daemons.decode.scheduler import Scheduler
from daemons.engine.config import EngineConfig
from daemons.engine.step import NEWEST, End, Item, Keep, Run, StepFailed
from daemons.kv.ledger import Owner
from daemons.protocol.causes import Cause
from daemons.protocol.generate import FinishReason, TokenOut
from daemons.protocol.metadata import Row, RowState
from daemons.protocol.status import Status
from daemons.runtime.events import Cancelled, Finished
from tests.support.cores import (
    CANCELLED,
    answer,
    came,
    causes,
    decode_core,
    done,
    key,
    of,
    progress,
    route,
    submitted,
    told,
)

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


def is_idle(core: Scheduler) -> bool:
    core.pages.check()
    return core.pages.free == core.pages.size and not core.busy


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
