"""A pool of its own for the layers with a window, or none."""

from __future__ import annotations

from daemons.kv.window import Windows
from daemons.kv.window_pool import NO_POOL, WindowPool

WINDOWS = Windows(4, (None, 5, 9))


def test_without_pages_every_layer_has_the_pages_of_all() -> None:
    for pool in (NO_POOL, WindowPool(WINDOWS)):
        assert not pool
        assert not pool.has(1)
        assert pool.pages_of(1, 100) == 100
        assert pool.needed(8, 100) == 0


def test_layers_with_a_window_have_pages_of_their_own() -> None:
    pool = WindowPool(WINDOWS, 30)
    assert pool
    assert [pool.has(layer) for layer in range(4)] == [False, True, True, False]
    assert [pool.pages_of(layer, 100) for layer in range(4)] == [100, 30, 30, 100]


def test_the_widest_window_says_what_is_needed() -> None:
    pool = WindowPool(WINDOWS, 30)
    assert [pool.first_needed(tokens) for tokens in (0, 8, 12, 16, 17)] == [0, 0, 1, 2, 2]
    assert pool.needed(1, 100) == 3
    assert pool.needed(8, 100) == 5
    assert pool.needed(8, 2) == 2, "a short text needs no more than it has"


def test_where_nothing_is_seen_again_nothing_is_needed() -> None:
    pool = WindowPool(Windows(4, (1,)), 30)
    assert [pool.first_needed(tokens) for tokens in (7, 8, 9)] == [1, 2, 2]
