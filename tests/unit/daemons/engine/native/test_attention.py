"""That it is attention at all is shown by the suite in ``tests/conformance``."""

from __future__ import annotations

from array import array

import torch

from daemons.engine.attention import Rule
from daemons.engine.batch import Batch, lay_out
from daemons.engine.device import Place
from daemons.engine.kv_cache import KvMemory, make_memory, make_pool, memory_of
from daemons.engine.native.attention import NativeAttention, attention_fits, native_attention
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey
from tests.support.native import team

CPU = torch.device("cpu")


def memory(head_dim: int = 64, dtype: torch.dtype = torch.float32) -> KvMemory:
    return memory_of(make_pool(2, 2, 80, 16, head_dim, Place(CPU, dtype)))


def batch_of(*steps: tuple[int, int]) -> Batch:
    """A batch of (tokens, start)."""
    items = [
        Item(RoomKey(room, 1), (0,) * tokens, start, tuple(range(40 * room, 40 * room + 40)), True)
        for room, (tokens, start) in enumerate(steps)
    ]
    return lay_out(items, 16, CPU)


def test_a_steps_result_is_the_same_to_the_bit_whoever_shares_its_work() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        kept = memory(dtype=dtype)
        kept.memory.normal_(generator=torch.Generator().manual_seed(2))
        query, kv = torch.randn(2, 6, 64).to(dtype), torch.randn(2, 4, 64).to(dtype)
        # Two rooms are enough work as they are; alone, a long past is shared out.
        both = native_attention(team(1))(kept, batch_of((1, 600), (1, 600)))(1, query, kv)
        for members in (1, 2):
            alone = native_attention(team(members))(kept, batch_of((1, 600)))
            assert torch.equal(alone(1, query[:1], kv[:1]), both[:1])


def test_a_window_reads_no_page_that_lies_before_it() -> None:
    kept = memory()
    query, kv = torch.randn(1, 6, 64), torch.randn(1, 4, 64)
    batch = batch_of((1, 600))
    numbers = batch.tables[0].numbers
    attend = native_attention(team(1))
    wanted = attend(kept, batch)(0, query, kv, Rule(window=100))
    numbers[:30] = array("i", [10**6] * 30)  # 600 - 100 is on page 31
    assert torch.equal(attend(kept, batch)(0, query, kv, Rule(window=100)), wanted)


def test_the_batch_is_laid_out_in_four_numbers_an_item() -> None:
    attend = NativeAttention(team(1), memory(), batch_of((3, 5), (1, 20)))
    assert (attend.batch.tokens, attend.batch.span_count) == (4, 2)
    assert list(attend._spans) == [0, 3, 5, 0, 3, 1, 20, 40]
    assert list(attend._pages) == list(range(80))
    assert list(attend._rows) == [0, 0, 0, 0, 5, 6, 7, 20]


def test_only_pools_that_the_kernels_know_are_taken() -> None:
    assert attention_fits(memory().full, heads=6)
    assert not attention_fits(memory(head_dim=5).full, heads=6)
    assert not attention_fits(memory(dtype=torch.float64).full, heads=6)
    assert not attention_fits(memory().full, heads=2 * 65)


def test_window_tables_lie_behind_the_others_and_count_from_the_first_page_of_the_text() -> None:
    kept = make_memory(
        [True, False],
        kv_heads=2,
        pages=80,
        window_pages=9,
        page_size=16,
        head_dim=64,
        place=Place(CPU, torch.float32),
    )
    items = [
        Item(RoomKey(1, 1), (0,), 40, (5, 6, 7), True, (3, 1), 1),
        Item(RoomKey(2, 1), (0, 0), 3, (8,), True, (2,), 0),
    ]
    attend = NativeAttention(team(1), kept, lay_out(items, 16, CPU))
    assert list(attend._spans) == [0, 1, 40, 0, 1, 2, 3, 3]
    assert list(attend._window_spans or ()) == [0, 1, 40, 3, 1, 2, 3, 6]
    assert list(attend._pages) == [5, 6, 7, 8, 3, 1, 2]
    assert [(cache.pages, cache.windowed) for cache in attend.caches] == [(9, 1), (80, 0)]
    addresses = [
        region.address for region in kept.regions() if (region.kind, region.head) == (0, 0)
    ]
    assert [cache.base for cache in attend.caches] == addresses
    assert NativeAttention(team(1), memory(), batch_of((3, 5)))._window_spans is None
