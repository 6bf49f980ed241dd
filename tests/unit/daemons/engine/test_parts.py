"""That attention over two pools is attention is shown by the suite in ``tests/conformance``."""

from __future__ import annotations

import torch

from daemons.engine.attention import PLAIN, Attend, Rule, paged_attention
from daemons.engine.batch import Batch, lay_out
from daemons.engine.device import Place
from daemons.engine.kv_cache import KvMemory, KvPool, make_memory, make_pool, memory_of
from daemons.engine.parts import ByParts
from daemons.engine.progress import Progress
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey

PLACE = Place(torch.device("cpu"), torch.float32)
ITEM = Item(RoomKey(1, 1), (0,) * 2, 9, (3, 0, 2), samples=True, window=(1, 4), window_first=1)


def memory() -> KvMemory:
    return make_memory(
        [True, False, True],
        kv_heads=1,
        pages=4,
        window_pages=5,
        page_size=4,
        head_dim=8,
        place=PLACE,
    )


def batch_of(progress: Progress | None = None) -> Batch:
    return lay_out([ITEM], 4, PLACE.device, progress)


def test_each_layer_goes_to_its_pool_by_its_number_there() -> None:
    kept, seen = memory(), []

    def noted(pool: KvPool, batch: Batch) -> Attend:
        def attend(
            layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
        ) -> torch.Tensor:
            seen.append((pool is kept.window, layer, batch.slots.tolist(), rule))
            return query

        return attend

    attend = ByParts(noted)(kept, batch_of())
    near = Rule(window=5)
    for layer, rule in enumerate((near, PLAIN, near)):
        attend(layer, torch.empty(0), torch.empty(0), rule)
    # Position 9 is on the third page of the text: the second of the window table.
    assert seen == [
        (True, 0, [17, 18], near),
        (False, 0, [9, 10], PLAIN),
        (True, 1, [17, 18], near),
    ]


def test_progress_counts_the_layers_of_the_model() -> None:
    progress = Progress(3)
    progress.begin(1)
    attend = ByParts(paged_attention)(memory(), batch_of(progress))
    query, kv = torch.randn(2, 2, 8), torch.randn(2, 2, 8)
    done = []
    for layer in range(3):
        attend(layer, query, kv, Rule(window=5 if layer != 1 else None))
        done.append(progress.layers_of(1))
    assert done == [1, 2, 3]


def test_one_pool_is_attended_to_as_it_is() -> None:
    kept, batch = memory_of(make_pool(1, 1, 4, 4, 8, PLACE)), batch_of()
    asked = []

    def noted(pool: KvPool, its: Batch) -> Attend:
        asked.append((pool, its))
        return paged_attention(pool, its)

    ByParts(noted)(kept, batch)
    assert len(asked) == 1
    assert asked[0][0] is kept.full
    assert asked[0][1] is batch


def test_two_ways_of_the_same_attention_are_the_same() -> None:
    assert ByParts(paged_attention) == ByParts(paged_attention)
    assert ByParts(paged_attention) != ByParts(lambda pool, batch: paged_attention(pool, batch))
