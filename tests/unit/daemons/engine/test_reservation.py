"""How much memory the pools of a model take, by its shape alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from daemons.cluster.errors import OperatorError
from daemons.engine import kv_cache, reservation
from daemons.engine.attention import Rule
from daemons.engine.config import EngineConfig
from daemons.engine.device import Place
from daemons.engine.kv_cache import KvMemory
from daemons.engine.models.spec import Spec
from daemons.engine.reservation import reserved

BF16 = Place(torch.device("cpu"), torch.bfloat16)
CONTEXT, WINDOW, CHUNK, PAGE_SIZE = 8192, 512, 256, 16
TOKEN_BYTES = 2 * 256 * 2  # of a layer: kinds, entries of the one head, bytes of each
GEMMA3 = [None if layer % 6 == 5 else WINDOW for layer in range(26)]
MISTRAL = [WINDOW] * 4


def spec_of(windows: Sequence[int | None], positions: int = CONTEXT) -> Spec:
    return Spec(
        architecture="Any",
        vocab_size=100,
        layers=len(windows),
        heads=4,
        kv_heads=1,
        head_dim=256,
        positions=positions,
        rules=tuple(Rule(window) for window in windows),
    )


def pools(
    windows: Sequence[int | None], rooms: int, kv_tokens: int = CONTEXT, positions: int = CONTEXT
) -> KvMemory:
    config = EngineConfig(page_size=PAGE_SIZE, chunk_tokens=CHUNK)
    return reserved(config, spec_of(windows, positions), BF16, kv_tokens, rooms)


def test_a_window_costs_what_it_shows_and_not_the_text() -> None:
    memory = pools(GEMMA3, rooms=1)
    assert (memory.full.layers, memory.full.pages) == (4, CONTEXT // PAGE_SIZE)
    assert memory.window.layers == 22
    assert memory.window.pages == 49  # 511 + 255 tokens back and on, and one page
    assert memory.memory.nbytes == (4 * CONTEXT + 22 * 49 * PAGE_SIZE) * TOKEN_BYTES
    assert memory.memory.nbytes < 26 * CONTEXT * TOKEN_BYTES / 4


def test_the_window_pool_is_for_all_rooms_and_never_larger_than_the_full_one() -> None:
    assert pools(GEMMA3, rooms=3).window.pages == 3 * 49
    assert pools(GEMMA3, rooms=30).window.pages == CONTEXT // PAGE_SIZE
    assert pools(GEMMA3, rooms=3, kv_tokens=160).window.pages == 10
    assert pools(GEMMA3, rooms=3, positions=320).window.pages == 3 * 20  # no text is longer


def test_a_model_without_windows_has_no_window_pool() -> None:
    memory = pools([None] * 3, rooms=9)
    assert (memory.window.layers, memory.window.pages) == (0, 0)
    assert memory.memory.nbytes == 3 * CONTEXT * TOKEN_BYTES


def test_where_all_layers_have_windows_pages_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pools(MISTRAL, rooms=2)
    assert memory.full.pages == CONTEXT // PAGE_SIZE
    assert memory.memory.nbytes == 4 * 2 * 49 * PAGE_SIZE * TOKEN_BYTES
    monkeypatch.setattr(reservation, "free_bytes", lambda _: 1 << 30)
    memory = pools(MISTRAL, rooms=2, kv_tokens=0)
    assert memory.full.pages == 2 * CONTEXT // PAGE_SIZE  # as many as two rooms can fill
    assert memory.window.pages == 2 * 49


def test_what_is_free_goes_to_windows_first_and_the_rest_to_full_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = 100 << 20
    monkeypatch.setattr(reservation, "free_bytes", lambda _: free)
    memory = pools(GEMMA3, rooms=1, kv_tokens=0)
    budget = int(free * EngineConfig().kv_fraction)
    assert memory.window.pages == 49
    left = budget - 49 * 22 * PAGE_SIZE * TOKEN_BYTES
    assert memory.full.pages == left // (4 * PAGE_SIZE * TOKEN_BYTES)
    assert budget - 4 * PAGE_SIZE * TOKEN_BYTES < memory.memory.nbytes <= budget


def test_pools_that_do_not_fit_say_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = (4 * CONTEXT + 22 * 49 * PAGE_SIZE) * TOKEN_BYTES
    monkeypatch.setattr(reservation, "free_bytes", lambda _: needed)
    assert pools(GEMMA3, rooms=1).memory.nbytes == needed
    monkeypatch.setattr(reservation, "free_bytes", lambda _: needed - (3 << 20))
    with pytest.raises(OperatorError, match=r"3\.0 MiB too much"):
        pools(GEMMA3, rooms=1)


def test_memory_that_is_counted_as_free_and_not_given_is_the_operators_affair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(length: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(kv_cache, "shareable", refused)
    with pytest.raises(OperatorError, match="a KV pool of 512 pages"):
        pools(MISTRAL, rooms=1)
