"""Layers with a window in pages of their own: what is seen is right, defects would be noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from daemons.decode.memory import Memory as DecodeMemory
from daemons.decode.outbox import Outbox
from daemons.kv.ledger import OutOfPages, Owner
from daemons.kv.window_cache import WindowCache
from daemons.kv.window_pool import WindowPool
from daemons.kv.window_table import WindowTable
from daemons.prefill.memory import Memory as PrefillMemory
from tests.sim.__main__ import run_seed
from tests.sim.plan import draw

WINDOWED = [seed for seed in range(600) if draw(seed).window is not None]
SEEDS, MUTANT_SEEDS = WINDOWED[:60], WINDOWED[:120]

Mutation = Callable[[pytest.MonkeyPatch], None]


def run_all(seeds: Sequence[int]) -> Counter[str]:
    return sum((run_seed(seed).seen for seed in seeds), Counter())


def test_windows_move_on_travel_are_cached_and_evicted_and_nothing_else_is_read() -> None:
    seen = run_all(SEEDS)
    assert seen["steps of which a window has moved on"] > 800
    assert seen["window pages sent"] > 300
    assert seen["prompts begun from cached window pages"] > 10
    assert seen["window pages evicted"] > 20


# --- mutants: each is a defect that the simulator must find ---


def a_page_is_used_again_while_it_is_seen(patch: pytest.MonkeyPatch) -> None:
    """Rooms have a page too few, and take what they lack from what is seen."""
    a_room_gets_a_page_too_few(patch)
    cover, first = WindowTable.cover, WindowPool.first_needed

    def later(self: WindowPool, tokens: int) -> int:
        return first(self, tokens + self.windows.page_size)

    def hasty(self: WindowTable, pool: WindowPool, start: int, end: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(WindowPool, "first_needed", later)
            cover(self, pool, start, end)

    patch.setattr(WindowTable, "cover", hasty)


def pages_are_not_quarantined(patch: pytest.MonkeyPatch) -> None:
    isolate = DecodeMemory.isolate

    def hasty(self: DecodeMemory, request: Any, failure: Any, now: float) -> Any:
        held = isolate(self, request, failure, now)
        self.window.release(request.key, held.window, Owner.QUARANTINED)
        held.window = ()
        return held

    patch.setattr(DecodeMemory, "isolate", hasty)


def too_few_pages_are_offered(patch: pytest.MonkeyPatch) -> None:
    destination = Outbox.destination

    def short(self: Outbox, request: Any, page_size: int) -> None:
        table, request.window = request.window, WindowTable(0, request.window.pages[1:])
        destination(self, request, page_size)
        request.window = table

    patch.setattr(Outbox, "destination", short)


def pages_are_free_while_they_are_sent(patch: pytest.MonkeyPatch) -> None:
    keep = WindowCache.keep

    def hasty(self: WindowCache, key: Any, lease: Any, table: WindowTable) -> None:
        keep(self, key, lease, table)
        self.end(key, lease)
        table.read.clear()

    patch.setattr(WindowCache, "keep", hasty)


def a_cached_page_may_go_while_it_is_read(patch: pytest.MonkeyPatch) -> None:
    read = WindowCache.read

    def careless(self: WindowCache, key: Any, lease: Any) -> None:
        read(self, key, lease)
        for node in lease.windows:
            self._pages.left_by(key, node.window)

    patch.setattr(WindowCache, "read", careless)


def a_prefix_without_its_window_is_gone_on_from(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowCache, "usable", lambda self, nodes: len(nodes))


def a_room_gets_a_page_too_few(patch: pytest.MonkeyPatch) -> None:
    needed = WindowPool.needed
    patch.setattr(
        WindowPool,
        "needed",
        lambda self, chunk, pages: max(min(1, pages), needed(self, chunk, pages) - 1),
    )


def pages_stay_with_rooms_that_are_over(patch: pytest.MonkeyPatch) -> None:
    release = PrefillMemory.release

    def forgetful(self: PrefillMemory, request: Any) -> None:
        request.window = WindowTable()
        release(self, request)

    patch.setattr(PrefillMemory, "release", forgetful)


def pages_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    lacks = DecodeMemory.lacks

    def eager(self: DecodeMemory, request: Any) -> bool:
        pool, self.pool = self.pool, WindowPool()
        try:
            return lacks(self, request)
        finally:
            self.pool = pool

    patch.setattr(DecodeMemory, "lacks", eager)


MUTANTS: list[Mutation] = [
    a_page_is_used_again_while_it_is_seen,
    pages_are_not_quarantined,
    too_few_pages_are_offered,
    pages_are_free_while_they_are_sent,
    a_cached_page_may_go_while_it_is_read,
    a_prefix_without_its_window_is_gone_on_from,
    a_room_gets_a_page_too_few,
    pages_stay_with_rooms_that_are_over,
    pages_are_not_waited_for,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_simulator_finds(mutate: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, OutOfPages)):
        run_all(MUTANT_SEEDS)
