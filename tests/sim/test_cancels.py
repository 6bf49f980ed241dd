"""Where nothing else is wrong, a cancel ends a room at once, and soon nothing of it is left."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from daemons.decode.ends import Ends
from daemons.decode.outbox import Outbox
from tests.sim.invariants import Violation
from tests.sim.plan import draw
from tests.sim.world import World

CALM = [seed for seed in range(1200) if draw(seed).calm]


def run_all() -> Counter[str]:
    """Run calm worlds in which most rooms are cancelled at some time, on one leg or both."""
    seen: Counter[str] = Counter()
    for seed in CALM:
        world = World(replace(draw(seed), cancel=0.8, twin=1.0))
        world.run()
        seen += world.seen
    return seen


def test_a_cancelled_room_is_gone_within_a_step_and_the_messages_about_it() -> None:
    assert run_all()["cancelled rooms gone in time"] > 1000


def a_cancel_waits_for_the_tick(patch: pytest.MonkeyPatch) -> None:
    fail = Ends.fail

    def lazy(self: Ends, request: Any, failure: Any, now: float, fence: Any = None) -> None:
        if failure.stage != "client":
            fail(self, request, failure, now, fence)

    patch.setattr(Ends, "fail", lazy)


def prefill_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outbox, "abort", lambda self, peer, key, failure: None)


@pytest.mark.parametrize(
    "mutate", [a_cancel_waits_for_the_tick, prefill_is_not_told], ids=lambda m: m.__name__
)
def test_the_simulator_finds(mutate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises(Violation):
        run_all()
