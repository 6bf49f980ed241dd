from __future__ import annotations

from pathlib import Path

import pytest
import torch

from daemons.cluster.errors import OperatorError
from daemons.engine import engine as engines
from daemons.engine.attention import PLAIN, Rule, paged_attention
from daemons.engine.batch import Batch, lay_out
from daemons.engine.config import EngineConfig
from daemons.engine.device import Place, kv_place
from daemons.engine.engine import Engine
from daemons.engine.gathered import gathered_attention, regrouped
from daemons.engine.kernels import choose_for_pool
from daemons.engine.kv_cache import (
    FP8,
    LARGEST_FP8,
    KvPool,
    make_memory,
    make_pool,
    memory_of,
    rounded,
)
from daemons.engine.parts import ByParts
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import checkpoint
from tests.support.engines import Talk, begin, hand_over, prefill, talk_on

CPU = torch.device("cpu")
PAGE_SIZE, KV_HEADS, HEAD_DIM, PAGES = 4, 2, 16, 12
# A prompt's later chunk over scattered pages, a step that shares its first page, a whole prompt.
ITEMS = [
    Item(RoomKey(1, 1), (0,) * 5, 9, (7, 2, 9, 3), samples=True),
    Item(RoomKey(2, 1), (0,), 6, (7, 5), samples=True),
    Item(RoomKey(3, 1), (0,) * 3, 0, (11,), samples=True),
]


def pool_of(dtype: torch.dtype) -> KvPool:
    return make_pool(2, KV_HEADS, PAGES, PAGE_SIZE, HEAD_DIM, Place(CPU, dtype))


def batch_of(items: list[Item]) -> Batch:
    return lay_out(items, PAGE_SIZE, CPU)


@pytest.mark.parametrize("rule", [PLAIN, Rule(window=3), Rule(softcap=2.0, scale=0.5)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("page_size", [PAGE_SIZE, 4 * PAGE_SIZE])
def test_it_is_attention_over_the_rounded_keys_and_values(
    page_size: int, dtype: torch.dtype, rule: Rule
) -> None:
    draw = torch.Generator().manual_seed(2)
    past = torch.randn(pool_of(dtype).memory.shape, generator=draw)
    small, wide = pool_of(FP8), pool_of(dtype)
    small.memory.copy_(rounded(past))
    wide.memory.copy_(rounded(past))
    batch = batch_of(ITEMS)
    query = torch.randn(9, 4, HEAD_DIM, generator=draw).to(dtype)
    kv = torch.randn(9, 2 * KV_HEADS, HEAD_DIM, generator=draw).to(dtype)
    over_small = gathered_attention(paged_attention, dtype, page_size)(small, batch)
    over_wide = paged_attention(wide, batch)
    for layer in (0, 1):
        found = over_small(layer, query, kv, rule)
        assert torch.allclose(
            found, over_wide(layer, query, rounded(kv).to(dtype), rule), atol=1e-6
        )
        assert torch.equal(small.memory[layer].to(dtype), wide.memory[layer])


@pytest.mark.parametrize("page_size", [PAGE_SIZE, 4 * PAGE_SIZE])
def test_window_pages_of_fp8_are_gathered_from_their_own_pool(page_size: int) -> None:
    items = [
        Item(RoomKey(1, 1), (0,) * 5, 9, (7, 2, 9, 3), True, (0, 8, 5), 1),
        Item(RoomKey(2, 1), (0,), 9, (1, 5, 6), True, (3, 1, 6), 0),
    ]
    small, wide = (
        make_memory(
            [True, False],
            kv_heads=KV_HEADS,
            pages=PAGES,
            window_pages=9,
            page_size=PAGE_SIZE,
            head_dim=HEAD_DIM,
            place=Place(CPU, dtype),
        )
        for dtype in (FP8, torch.float32)
    )
    draw = torch.Generator().manual_seed(4)
    small.memory.copy_(rounded(torch.randn(small.memory.shape, generator=draw)))
    wide.memory.copy_(small.memory.float())
    batch = batch_of(items)
    query = torch.randn(6, 4, HEAD_DIM, generator=draw)
    kv = torch.randn(6, 2 * KV_HEADS, HEAD_DIM, generator=draw)
    way = gathered_attention(paged_attention, torch.float32, page_size)
    over_small, over_wide = ByParts(way)(small, batch), ByParts(paged_attention)(wide, batch)
    for layer, rule in enumerate((Rule(window=5), PLAIN)):
        found = over_small(layer, query, kv, rule)
        assert torch.allclose(found, over_wide(layer, query, rounded(kv).float(), rule), atol=1e-6)
    assert torch.equal(small.memory.float(), wide.memory)


def test_small_pages_become_large_ones_of_the_same_type() -> None:
    draw = torch.Generator().manual_seed(3)
    pool, same = pool_of(torch.float32), pool_of(torch.float32)
    pool.memory.copy_(torch.randn(pool.memory.shape, generator=draw))
    same.memory.copy_(pool.memory)
    batch = batch_of(ITEMS)
    query = torch.randn(9, 4, HEAD_DIM, generator=draw)
    kv = torch.randn(9, 2 * KV_HEADS, HEAD_DIM, generator=draw)
    found = gathered_attention(paged_attention, torch.float32, 16)(pool, batch)(1, query, kv)
    assert torch.allclose(found, paged_attention(same, batch)(1, query, kv), atol=1e-6)
    assert torch.equal(pool.memory, same.memory)


def test_contexts_lie_behind_each_other_and_begin_a_page() -> None:
    pages, items = regrouped(batch_of(ITEMS), 2)
    assert pages == [7, 2, 9, 3, 7, 5, 11, 11]
    assert [item.pages for item in items] == [(0, 1), (2,), (3,)]
    assert regrouped(batch_of(ITEMS), 1)[0] == [7, 2, 9, 3, 7, 5, 11]


def test_what_is_too_large_becomes_the_largest_and_the_rest_the_nearest() -> None:
    values = torch.tensor([500.0, -1e9, 448.0, 1.06, -0.0])
    assert rounded(values).float().tolist() == [LARGEST_FP8, -LARGEST_FP8, 448.0, 1.0, 0.0]
    assert rounded(torch.tensor([float("nan")])).float().isnan().all()  # a fault stays one
    random = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    assert ((rounded(random).float() - random).abs() <= random.abs() / 16 + 2**-10).all()


def test_pages_leave_come_back_and_are_cleared() -> None:
    pool = pool_of(FP8)
    pool.memory.copy_(rounded(torch.randn(pool.memory.shape)))
    before = pool.memory.float()
    content = pool.copy_out([2, 5])
    pool.copy_in([7, 1], content)
    assert torch.equal(pool.memory.float()[:, :, :, [7, 1]], before[:, :, :, [2, 5]])
    pool.clear(range(1, 3))
    assert not pool.memory.float()[:, :, :, 1:3].any()
    assert torch.equal(pool.memory.float()[:, :, :, 5], before[:, :, :, 5])
    regions = memory_of(pool).regions()
    assert all(region.page_bytes == PAGE_SIZE * HEAD_DIM for region in regions)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_cpu_and_fp32_are_refused(device: str) -> None:
    wants = EngineConfig(kv_dtype="fp8_e4m3")
    with pytest.raises(OperatorError, match="fp8_e4m3, on " + device) as caught:
        kv_place(wants, Place(torch.device(device), torch.float32))
    assert "auto" in caught.value.hint


def test_cuda_in_bf16_is_taken_and_auto_is_what_is_computed_in() -> None:
    place = Place(torch.device("cuda"), torch.bfloat16)
    kept = kv_place(EngineConfig(kv_dtype="fp8_e4m3"), place)
    assert (kept.device, kept.dtype_name) == (place.device, "fp8_e4m3")
    assert kv_place(EngineConfig(), place) is place


def test_the_attention_of_such_a_pool_is_chosen() -> None:
    attention = choose_for_pool(pool_of(FP8), 4, torch.float32)
    pool, batch = pool_of(FP8), batch_of([Item(RoomKey(1, 1), (0,), 0, (0,), True)])
    query, kv = torch.ones(1, 4, HEAD_DIM), torch.full((1, 2 * KV_HEADS, HEAD_DIM), 3.3)
    assert torch.equal(attention(pool, batch)(0, query, kv), torch.full((1, 4 * HEAD_DIM), 3.25))


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, Engine]:
    """Engines on a CPU, where only this test may have fp8."""
    monkeypatch.setattr(engines, "kv_place", lambda _, place: Place(place.device, FP8))
    config = EngineConfig(device="cpu", kernels="torch", page_size=16, kv_tokens=1024)
    model: Path = checkpoint("llama")
    return Engine.load(config, model), Engine.load(config, model)


def talk(room: int, *pages: int) -> Talk:
    return Talk(RoomKey(room, 1), tuple(range(30, 70)), pages)


def test_a_text_does_not_depend_on_chunks_or_on_leaving_and_coming_back(
    two: tuple[Engine, Engine],
) -> None:
    engine = two[0]
    assert engine.fingerprint.dtype == "fp8_e4m3"
    assert engine.kv_regions()[0].page_bytes == 16 * 16
    engine.warm_up()
    whole, chunked = talk(1, 0, 1, 2, 3), talk(2, 9, 5, 7, 11)
    begin(engine, [whole, chunked])
    talk_on(engine, [whole], 10, chunk=64)
    talk_on(engine, [chunked], 3, chunk=7)
    engine.keep(chunked.key, chunked.pages)
    chunked.pages = (20, 21, 30, 22)
    engine.restore(chunked.key, chunked.pages)
    talk_on(engine, [chunked], 10)
    assert chunked.tokens == whole.tokens


def test_pages_are_handed_over_as_bytes(two: tuple[Engine, Engine]) -> None:
    one, other = two
    alone, split = talk(1, 0, 1, 2, 3), talk(2, 4, 5, 6, 7)
    begin(one, [alone])
    talk_on(one, [alone], 8)
    prefill(one, split)
    hand_over(one, other, split, (9, 8, 1, 3))
    begin(other, [split])
    talk_on(other, [split], 8)
    assert split.tokens == alone.tokens
