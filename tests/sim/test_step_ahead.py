"""Steps that wait behind others, and prompts that a decode computes: defects would be noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from daemons.decode import running_batch
from daemons.decode.ends import Ends
from daemons.decode.engine_steps import EngineSteps
from daemons.decode.forward_queue import ForwardQueue
from daemons.decode.running_batch import RunningBatch
from daemons.engine.step import NEWEST, Item, Result
from daemons.kv.ledger import OutOfPages, Owner
from tests.sim.__main__ import run_seed
from tests.sim.plan import draw

AHEAD = [seed for seed in range(160) if draw(seed).steps_ahead]
LOCAL = [seed for seed in range(240) if draw(seed).local >= 0.5]

Mutation = Callable[[pytest.MonkeyPatch], None]


def run_all(seeds: Sequence[int]) -> Counter[str]:
    return sum((run_seed(seed).seen for seed in seeds), Counter())


def test_worlds_have_many_steps_ahead_and_prompts_that_decodes_compute() -> None:
    seen = run_all([*AHEAD[:20], *LOCAL[:20]])
    assert seen["steps ahead"] > 200
    assert seen["prompts computed by a decode"] > 50


# --- mutants: each is a defect that the simulator must find ---


def pages_are_free_when_the_first_of_two_steps_is_done(patch: pytest.MonkeyPatch) -> None:
    answered = EngineSteps._answered

    def hasty(self: EngineSteps, key: Any) -> Any:
        request = answered(self, key)
        if request is not None:
            request.in_steps = 0
        return request

    patch.setattr(EngineSteps, "_answered", hasty)


def a_step_ahead_runs_the_token_before(patch: pytest.MonkeyPatch) -> None:
    step = RunningBatch.step

    def stale(self: RunningBatch, pages: Any, **more: Any) -> list[Item]:
        def known(item: Item) -> Item:
            token = self.rooms[item.key].output[-1]
            tokens = (token,) if item.tokens == (NEWEST,) else item.tokens
            return Item(item.key, tokens, item.start, item.pages, item.samples)

        return [known(item) for item in step(self, pages, **more)]

    patch.setattr(RunningBatch, "step", stale)


def a_step_ahead_stands_where_the_one_before_does(patch: pytest.MonkeyPatch) -> None:
    step = RunningBatch.step

    def again(self: RunningBatch, pages: Any, **more: Any) -> list[Item]:
        return [
            Item(i.key, i.tokens, i.start - (i.tokens == (NEWEST,)), i.pages, i.samples)
            for i in step(self, pages, **more)
        ]

    patch.setattr(RunningBatch, "step", again)


def what_comes_after_the_end_is_told(patch: pytest.MonkeyPatch) -> None:
    stepped = EngineSteps._stepped

    def chatty(self: EngineSteps, result: Result, now: float) -> None:
        request = self.stages.ending.get(result.key)
        if request is not None and request.finished and result.token is not None:
            self.out.tell_token(result.key, result.token, None, None)
        stepped(self, result, now)

    patch.setattr(EngineSteps, "_stepped", chatty)


def texts_that_are_as_long_as_they_may_be_are_stepped_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(running_batch, "_is_full", lambda request: False)


def steps_go_ahead_of_prompts_and_retractions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        EngineSteps,
        "_may_go_ahead",
        lambda self: self.under_way <= self.ahead,
    )


def a_chunk_counts_twice(patch: pytest.MonkeyPatch) -> None:
    computed = ForwardQueue.computed

    def generous(self: ForwardQueue, request: Any, result: Any, now: float) -> int:
        request.chunk *= 2
        return computed(self, request, result, now)

    patch.setattr(ForwardQueue, "computed", generous)


def pages_of_a_prompt_are_free_while_it_is_computed(patch: pytest.MonkeyPatch) -> None:
    end = Ends.end

    def hasty(self: Ends, request: Any, failure: Any, now: float) -> None:
        if request.key in self.stages.forward.rooms and request.pages:
            self.memory.pages.release(request.key, request.pages, Owner.REQUEST)
            request.pages = ()
        end(self, request, failure, now)

    patch.setattr(Ends, "end", hasty)


def what_is_known_of_a_prompt_is_lost(patch: pytest.MonkeyPatch) -> None:
    computed = ForwardQueue.computed

    def forgetful(self: ForwardQueue, request: Any, result: Any, now: float) -> int:
        request.prompt_logprobs.clear()
        return computed(self, request, result, now)

    patch.setattr(ForwardQueue, "computed", forgetful)


MUTANTS: list[tuple[Mutation, list[int]]] = [
    (pages_are_free_when_the_first_of_two_steps_is_done, AHEAD),
    (a_step_ahead_runs_the_token_before, AHEAD),
    (a_step_ahead_stands_where_the_one_before_does, AHEAD),
    (what_comes_after_the_end_is_told, AHEAD),
    (texts_that_are_as_long_as_they_may_be_are_stepped_again, AHEAD),
    (steps_go_ahead_of_prompts_and_retractions, AHEAD),
    (a_chunk_counts_twice, LOCAL),
    (pages_of_a_prompt_are_free_while_it_is_computed, LOCAL),
    (what_is_known_of_a_prompt_is_lost, LOCAL),
]


@pytest.mark.parametrize(
    ("mutate", "seeds"), MUTANTS, ids=[mutate.__name__ for mutate, _ in MUTANTS]
)
def test_the_simulator_finds(
    mutate: Mutation, seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, OutOfPages)):
        run_all(seeds)
