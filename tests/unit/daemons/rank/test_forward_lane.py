from __future__ import annotations

from collections.abc import Callable

import pytest

from daemons.engine.config import EngineConfig
from daemons.engine.engine import Engine
from daemons.engine.step import (
    Begin,
    End,
    Item,
    Keep,
    Kept,
    Prepare,
    Prepared,
    Restore,
    Restored,
    Run,
    Sequence,
    StepDone,
    StepFailed,
)
from daemons.protocol.generate import Grammar, GrammarKind, Sampling
from daemons.protocol.ids import RoomKey
from daemons.rank.forward_lane import ForwardLane
from daemons.runtime.reactor import Wake
from tests.support.checkpoints import checkpoint

KEY = RoomKey(9, 1)
Take = Callable[[], object]


@pytest.fixture
def engine() -> Engine:
    config = EngineConfig(dtype="fp32", device="cpu", kv_tokens=64, page_size=16)
    return Engine.load(config, checkpoint("llama"))


def next_event(wake: Wake) -> object:
    import select

    assert select.select([wake.fd], [], [], 20)[0], "the lane reported nothing"
    (event,) = wake.take()
    return event


def test_a_begun_room_is_run_and_its_result_is_an_event(engine: Engine) -> None:
    wake = Wake()
    lane = ForwardLane(engine, wake)
    lane.execute(Begin(Sequence(KEY, Sampling(temperature=0), (5, 6))))
    lane.execute(Run((Item(KEY, (5, 6), 0, (0,), samples=True),)))
    event = next_event(wake)
    assert isinstance(event, StepDone)
    assert event.results[0].key == KEY
    assert event.results[0].token is not None


def test_a_room_that_was_not_begun_or_has_ended_has_an_error_of_its_own(engine: Engine) -> None:
    wake = Wake()
    lane = ForwardLane(engine, wake)
    lane.execute(Begin(Sequence(KEY, Sampling(temperature=0), (5,))))
    lane.execute(End(KEY))
    lane.execute(Run((Item(KEY, (5,), 0, (0,), samples=True),)))
    event = next_event(wake)
    assert isinstance(event, StepDone)
    assert "has not begun" in event.results[0].error


def test_a_begin_that_raises_is_the_error_of_its_room_and_of_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake, other = Wake(), RoomKey(8, 1)
    lane = ForwardLane(engine, wake)
    lane.execute(Begin(Sequence(other, Sampling(temperature=0), (5,))))
    lane.execute(Run((Item(other, (5,), 0, (1,), samples=True),)))
    next_event(wake)

    def broken(_: Sequence) -> None:
        raise MemoryError("no place")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "begin", lambda _, sequence: broken(sequence))
        lane.execute(Begin(Sequence(KEY, Sampling(temperature=0), (5,))))
        items = (Item(KEY, (5,), 0, (0,), samples=True), Item(other, (6,), 1, (1,), samples=True))
        lane.execute(Run(items))
        event = next_event(wake)
    assert isinstance(event, StepDone)
    errors = {result.key: result.error for result in event.results}
    assert errors == {KEY: "MemoryError: no place", other: ""}
    lane.execute(Begin(Sequence(KEY, Sampling(temperature=0), (5,))))
    lane.execute(Run((Item(KEY, (5,), 0, (0,), samples=True),)))
    event = next_event(wake)
    assert isinstance(event, StepDone)
    assert event.results[0].error == ""


def test_a_forward_that_breaks_names_its_rooms_and_the_lane_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake = Wake()
    lane = ForwardLane(engine, wake)
    lane.execute(Begin(Sequence(KEY, Sampling(temperature=0), (5,))))
    with monkeypatch.context() as broken:
        broken.setattr(Engine, "forward", _out_of_memory)
        lane.execute(Run((Item(KEY, (5,), 0, (0,), samples=True),)))
        assert next_event(wake) == StepFailed((KEY,), "MemoryError: no memory is left")
    lane.execute(Run((Item(KEY, (5,), 0, (0,), samples=True),)))
    assert isinstance(next_event(wake), StepDone)


def _out_of_memory(*_: object) -> object:
    raise MemoryError("no memory is left")


def test_pages_are_kept_and_restored_in_order_and_each_is_told(engine: Engine) -> None:
    wake = Wake()
    lane = ForwardLane(engine, wake)
    lane.execute(Begin(Sequence(KEY, Sampling(temperature=0), (5, 6))))
    lane.execute(Run((Item(KEY, (5, 6), 0, (0,), samples=True),)))
    next_event(wake)
    lane.execute(Keep(KEY, (0,)))
    assert next_event(wake) == Kept(KEY)
    lane.execute(Restore(KEY, (2,)))
    assert next_event(wake) == Restored(KEY)
    lane.execute(Restore(KEY, (2,)))
    event = next_event(wake)
    assert isinstance(event, Restored)
    assert "KeyError" in event.error
    lane.execute(Keep(KEY, (4000,)))
    event = next_event(wake)
    assert isinstance(event, Kept)
    assert event.error


@pytest.mark.parametrize("text", ['{"type": "object"}', "no JSON"])
def test_a_grammar_is_prepared_beside_forwards_and_told_when_it_is_there_or_cannot_be(
    engine: Engine, text: str
) -> None:
    wake = Wake()
    lane = ForwardLane(engine, wake)
    grammar = Grammar(GrammarKind.JSON_SCHEMA, text)
    for _ in range(2):  # the second time it is known
        lane.execute(Prepare(KEY, grammar))
        assert next_event(wake) == Prepared(KEY)


def test_a_preparation_that_raises_is_answered_all_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake = Wake()
    lane = ForwardLane(engine, wake)
    monkeypatch.setattr(Engine, "prepare", _out_of_memory)
    lane.execute(Prepare(KEY, Grammar(GrammarKind.JSON)))
    assert next_event(wake) == Prepared(KEY)
