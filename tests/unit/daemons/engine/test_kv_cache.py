from __future__ import annotations

import ctypes
import mmap

import pytest
import torch

from daemons.engine.device import Place
from daemons.engine.kv_cache import KvPool, make_pool

LAYERS, HEADS, PAGES, PAGE_SIZE, HEAD_DIM = 2, 3, 5, 4, 8


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def pool(request: pytest.FixtureRequest) -> KvPool:
    place = Place(torch.device("cpu"), request.param)
    return make_pool(LAYERS, HEADS, PAGES, PAGE_SIZE, HEAD_DIM, place)


def test_a_pool_is_zeroed_memory_on_a_page_boundary(pool: KvPool) -> None:
    assert not pool.memory.any()
    assert pool.memory.is_contiguous()
    assert pool.memory.data_ptr() % mmap.PAGESIZE == 0


def test_regions_follow_each_other_and_cover_the_pool(pool: KvPool) -> None:
    regions = pool.regions()
    assert len(regions) == LAYERS * 2 * HEADS
    address = pool.memory.data_ptr()
    for region in regions:
        assert region.address == address
        assert region.page_bytes == PAGE_SIZE * HEAD_DIM * pool.memory.element_size()
        address += PAGES * region.page_bytes
    assert address == pool.memory.data_ptr() + pool.memory.nbytes
    names = [(region.layer, region.kind, region.head) for region in regions]
    assert names == sorted(set(names))


def test_a_page_of_a_region_is_that_page_of_that_head(pool: KvPool) -> None:
    pool.memory[1, 0, 2, 3] = 7.0
    region = next(r for r in pool.regions() if (r.layer, r.kind, r.head) == (1, 0, 2))
    raw = ctypes.string_at(region.address + 3 * region.page_bytes, region.page_bytes)
    values = torch.frombuffer(bytearray(raw), dtype=pool.memory.dtype)
    assert values.tolist() == [7.0] * (PAGE_SIZE * HEAD_DIM)
    assert int(pool.memory.count_nonzero()) == PAGE_SIZE * HEAD_DIM


def test_a_write_puts_each_token_in_its_slot_of_each_head(pool: KvPool) -> None:
    kv = torch.randn(3, 2 * HEADS, HEAD_DIM).to(pool.memory.dtype)
    slots = [2 * PAGE_SIZE + 3, 0, 4 * PAGE_SIZE]
    pool.write(1, torch.tensor(slots), kv)
    assert not pool.memory[0].any()
    for token, slot in enumerate(slots):
        page, place = divmod(slot, PAGE_SIZE)
        assert torch.equal(pool.memory[1, 0, :, page, place], kv[token, :HEADS])
        assert torch.equal(pool.memory[1, 1, :, page, place], kv[token, HEADS:])
    assert int(pool.memory.count_nonzero()) == int(kv.count_nonzero())


def test_clearing_pages_leaves_the_others(pool: KvPool) -> None:
    pool.memory.fill_(1.0)
    pool.clear(range(1, 3))
    assert not pool.memory[:, :, :, 1:3].any()
    assert bool((pool.memory[:, :, :, [0, 3, 4]] == 1).all())


def test_pages_come_back_as_they_went_and_others_are_left_alone(pool: KvPool) -> None:
    pool.memory.copy_((torch.arange(pool.memory.numel()) % 251 + 1).view_as(pool.memory))
    before = pool.memory.clone()
    content = pool.copy_out([2, 0])
    assert tuple(content.shape) == (LAYERS, 2 * HEADS, 2, PAGE_SIZE * HEAD_DIM)
    pool.clear(range(PAGES))
    pool.copy_in([1, 3], content)
    assert torch.equal(pool.memory[:, :, :, 1], before[:, :, :, 2])
    assert torch.equal(pool.memory[:, :, :, 3], before[:, :, :, 0])
    assert not pool.memory[:, :, :, [0, 2, 4]].any()
    with pytest.raises(ValueError, match="1 pages for the content of 2"):
        pool.copy_in([1], content)
