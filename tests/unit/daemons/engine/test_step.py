from __future__ import annotations

from daemons.engine.step import Item, Result, Sequence
from daemons.protocol.generate import Sampling
from daemons.protocol.ids import RoomKey

KEY = RoomKey(1, 1)


def test_an_item_and_a_sequence_are_values_that_can_be_keys() -> None:
    items = {Item(KEY, (1, 2), 0, (0,), True), Item(KEY, (1, 2), 0, (0,), True)}
    sequences = {Sequence(KEY, Sampling(), (1,)), Sequence(KEY, Sampling(), (1,))}
    assert (len(items), len(sequences)) == (1, 1)


def test_a_result_without_more_is_a_chunk_that_went_well() -> None:
    assert Result(KEY) == Result(KEY, token=None, prompt_logprobs=(), error="")
