"""That it is attention at all is shown by the suite in ``tests/conformance``."""

from __future__ import annotations

from array import array

import torch

from daemons.engine.attention import Rule
from daemons.engine.batch import Batch, lay_out
from daemons.engine.device import Place
from daemons.engine.kv_cache import KvPool, make_pool
from daemons.engine.native.attention import NativeAttention, attention_fits, native_attention
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey
from tests.support.native import team

CPU = torch.device("cpu")


def pool_of(head_dim: int = 64, dtype: torch.dtype = torch.float32) -> KvPool:
    return make_pool(2, 2, 80, 16, head_dim, Place(CPU, dtype))


def batch_of(*steps: tuple[int, int]) -> Batch:
    """A batch of (tokens, start)."""
    items = [
        Item(RoomKey(room, 1), (0,) * tokens, start, tuple(range(40 * room, 40 * room + 40)), True)
        for room, (tokens, start) in enumerate(steps)
    ]
    return lay_out(items, 16, CPU)


def test_a_steps_result_is_the_same_to_the_bit_whoever_shares_its_work() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        pool = pool_of(dtype=dtype)
        pool.memory.normal_(generator=torch.Generator().manual_seed(2))
        query, kv = torch.randn(2, 6, 64).to(dtype), torch.randn(2, 4, 64).to(dtype)
        # Two rooms are enough work as they are; alone, a long past is shared out.
        both = native_attention(team(1))(pool, batch_of((1, 600), (1, 600)))(1, query, kv)
        for members in (1, 2):
            alone = native_attention(team(members))(pool, batch_of((1, 600)))
            assert torch.equal(alone(1, query[:1], kv[:1]), both[:1])


def test_a_window_reads_no_page_that_lies_before_it() -> None:
    pool = pool_of()
    query, kv = torch.randn(1, 6, 64), torch.randn(1, 4, 64)
    batch = batch_of((1, 600))
    numbers = batch.tables[0].numbers
    attend = native_attention(team(1))
    wanted = attend(pool, batch)(0, query, kv, Rule(window=100))
    numbers[:30] = array("i", [10**6] * 30)  # 600 - 100 is on page 31
    assert torch.equal(attend(pool, batch)(0, query, kv, Rule(window=100)), wanted)


def test_the_batch_is_laid_out_in_four_numbers_an_item() -> None:
    attend = NativeAttention(team(1), pool_of(), batch_of((3, 5), (1, 20)))
    assert (attend.batch.tokens, attend.batch.span_count) == (4, 2)
    assert list(attend._spans) == [0, 3, 5, 0, 3, 1, 20, 40]
    assert list(attend._pages) == list(range(80))
    assert list(attend._rows) == [0, 0, 0, 0, 5, 6, 7, 20]


def test_only_pools_that_the_kernels_know_are_taken() -> None:
    assert attention_fits(pool_of(), heads=6)
    assert not attention_fits(pool_of(head_dim=5), heads=6)
    assert not attention_fits(pool_of(dtype=torch.float64), heads=6)
    assert not attention_fits(pool_of(), heads=2 * 65)
