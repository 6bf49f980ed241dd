"""Rooms in less memory than they may need: nobody stands still, and defects would be noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from daemons.decode import admission, retraction
from daemons.decode.budget import Budget
from daemons.decode.ends import Ends
from daemons.decode.retracted_queue import RetractedQueue
from daemons.decode.retraction import Retraction
from daemons.engine.step import Kept
from daemons.kv.ledger import OutOfPages
from daemons.runtime.turns import put_in_turn
from tests.sim.__main__ import run_seed
from tests.sim.plan import draw

# Worlds without faults and with almost endless deadlines, in which memory is short.
CALM = [seed for seed in range(1500) if (plan := draw(seed)).calm and plan.long_texts]
ROUGH = [seed for seed in range(300) if (plan := draw(seed)).long_texts and not plan.calm]

Mutation = Callable[[pytest.MonkeyPatch], None]


def run_all(seeds: Sequence[int]) -> Counter[str]:
    return sum((run_seed(seed).seen for seed in seeds), Counter())


def test_in_calm_worlds_every_room_has_its_whole_text_however_short_memory_is() -> None:
    assert run_all(CALM)["rooms retracted"] > 50


# --- mutants: each is a defect that the simulator must find ---


def nobody_leaves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retraction, "victim", lambda rooms: None)


def nobody_comes_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RetractedQueue, "next", lambda self: None)


def the_host_is_counted_to_its_last_page(patch: pytest.MonkeyPatch) -> None:
    fits = Budget.fits

    def generous(self: Budget, request: Any) -> bool:
        host, self.host_pages = self.host_pages, 10**6
        try:
            return fits(self, request)
        finally:
            self.host_pages = host

    patch.setattr(Budget, "fits", generous)


def what_cannot_move_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Budget, "_unmovable", property(lambda self: -self.pages.size))


def pages_are_free_before_they_are_copied(patch: pytest.MonkeyPatch) -> None:
    retract = Retraction._retract

    def hasty(self: Retraction, request: Any, because: str, now: float) -> None:
        retract(self, request, because, now)
        self.kept(Kept(request.key), now)

    patch.setattr(Retraction, "_retract", hasty)


def a_room_runs_before_its_pages_are_back(patch: pytest.MonkeyPatch) -> None:
    resume = Retraction.resume

    def hasty(self: Retraction) -> None:
        resume(self)
        for key, request in list(self.stages.retracted.rooms.items()):
            if not request.kept:
                request.in_steps = 0
                self.stages.running.rooms[key] = self.stages.retracted.rooms.pop(key)
                self.recorder.enter(key, "running", "hastily", request.since_s)

    patch.setattr(Retraction, "resume", hasty)


def a_room_that_ends_while_it_is_copied_frees_its_pages_at_once(patch: pytest.MonkeyPatch) -> None:
    end = Ends.end

    def hasty(self: Ends, request: Any, failure: Any, now: float) -> None:
        if request.key in self.stages.retracted.rooms:
            request.in_steps = 0
        end(self, request, failure, now)

    patch.setattr(Ends, "end", hasty)


def a_queue_forgets_whose_turn_it_is(patch: pytest.MonkeyPatch) -> None:
    def careless(rooms: dict[Any, Any], key: Any, room: Any) -> None:
        rooms[key] = room

    assert admission.put_in_turn is put_in_turn
    patch.setattr(admission, "put_in_turn", careless)


MUTANTS: list[Mutation] = [
    nobody_leaves,
    nobody_comes_back,
    the_host_is_counted_to_its_last_page,
    what_cannot_move_is_not_counted,
    pages_are_free_before_they_are_copied,
    a_room_runs_before_its_pages_are_back,
    a_room_that_ends_while_it_is_copied_frees_its_pages_at_once,
    a_queue_forgets_whose_turn_it_is,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_simulator_finds(mutate: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, OutOfPages)):
        run_all((*CALM, *ROUGH))
