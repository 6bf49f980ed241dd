"""What is said of a forward is never more than is done."""

from __future__ import annotations

import ctypes

from daemons.engine.progress import BROKEN_KEPT, ENDS_KEPT, Progress


def test_layers_count_from_the_first_and_only_in_turn() -> None:
    progress = Progress(3)
    progress.begin(1)
    progress.reach(1)
    assert progress.layers_of(1) == 0
    progress.reach(0)
    progress.reach(1)
    assert progress.layers_of(1) == 2


def test_a_forward_that_has_not_begun_has_nothing_and_one_that_has_ended_everything() -> None:
    progress = Progress(3)
    progress.begin(4)
    progress.reach(0)
    assert [progress.layers_of(step) for step in (3, 4, 5)] == [0, 1, 0]
    assert [progress.is_under_way(step) for step in (3, 4, 5)] == [False, True, False]
    progress.end(4)
    assert [progress.layers_of(step) for step in (3, 4, 5)] == [3, 3, 0]
    assert not progress.is_under_way(4)


def test_a_forward_begins_with_nothing_done() -> None:
    progress = Progress(2)
    progress.begin(1)
    progress.reach(0)
    progress.end(1)
    progress.begin(2)
    assert progress.layers_of(2) == 0


def test_a_forward_that_broke_is_over_and_said_to_be_broken() -> None:
    progress = Progress(2)
    progress.begin(1)
    progress.broke(1)
    assert progress.is_broken(1)
    assert not progress.is_under_way(1)
    for step in range(2, BROKEN_KEPT + 2):
        progress.broke(step)
    assert not progress.is_broken(1)
    assert progress.is_broken(2)


def test_kernels_raise_the_count_by_its_address() -> None:
    progress = Progress(2)
    progress.begin(1)
    ctypes.c_int64.from_address(progress.address).value = 1
    assert progress.layers_of(1) == 1


def test_when_a_forward_ended_is_remembered_for_a_while() -> None:
    progress = Progress(1)
    assert progress.ended_s(0) is progress.ended_s(1) is None
    for step in (1, 2, 1 + ENDS_KEPT):
        progress.begin(step)
        progress.end(step)
    second_s, last_s = progress.ended_s(2), progress.ended_s(1 + ENDS_KEPT)
    assert progress.ended_s(1) is None
    assert second_s is not None
    assert last_s is not None
    assert second_s <= last_s
