from __future__ import annotations

import ctypes
import mmap

import pytest
import torch

from daemons.engine.device import Place
from daemons.engine.kv_cache import KvMemory, KvPool, make_memory, make_pool, memory_of

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
    regions = memory_of(pool).regions()
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
    region = next(r for r in memory_of(pool).regions() if (r.layer, r.kind, r.head) == (1, 0, 2))
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


def two_pools(*windowed: bool, pages: int = PAGES, window_pages: int = 2) -> KvMemory:
    return make_memory(
        windowed,
        kv_heads=HEADS,
        pages=pages,
        window_pages=window_pages,
        page_size=PAGE_SIZE,
        head_dim=HEAD_DIM,
        place=Place(torch.device("cpu"), torch.bfloat16),
    )


def test_layers_with_a_window_have_their_own_pages_in_the_same_piece_of_memory() -> None:
    memory = two_pools(True, False, True, True, False)
    assert [tuple(place) for place in memory.places] == [(1, 0), (0, 0), (1, 1), (1, 2), (0, 1)]
    assert (memory.full.layers, memory.full.pages) == (2, PAGES)
    assert (memory.window.layers, memory.window.pages) == (3, 2)
    page_bytes = PAGE_SIZE * HEAD_DIM * 2
    assert memory.memory.nbytes == (2 * PAGES + 3 * 2) * 2 * HEADS * page_bytes
    assert memory.memory.data_ptr() % mmap.PAGESIZE == 0
    ends = memory.memory.data_ptr(), memory.memory.data_ptr() + memory.memory.nbytes
    covered = 0
    for region in memory.regions():
        its_pages = memory.pool_of(region.layer).pages
        assert ends[0] <= region.address <= ends[1] - its_pages * region.page_bytes
        covered += its_pages * region.page_bytes
    assert covered == memory.memory.nbytes
    names = [(region.layer, region.kind, region.head) for region in memory.regions()]
    assert names == [
        (layer, kind, head) for layer in range(5) for kind in (0, 1) for head in range(HEADS)
    ]


def test_a_region_of_a_layer_with_a_window_is_where_its_pool_writes() -> None:
    memory = two_pools(True, False, True)
    memory.window.memory[1, 1, 2, 1] = 7.0  # the third layer
    region = next(r for r in memory.regions() if (r.layer, r.kind, r.head) == (2, 1, 2))
    raw = ctypes.string_at(region.address + region.page_bytes, region.page_bytes)
    values = torch.frombuffer(bytearray(raw), dtype=torch.bfloat16)
    assert values.tolist() == [7.0] * (PAGE_SIZE * HEAD_DIM)


def test_a_pool_without_layers_has_no_bytes_and_still_its_numbers() -> None:
    memory = two_pools(True, True, pages=1 << 20)
    assert (memory.full.pages, memory.full.memory.nbytes) == (1 << 20, 0)
    assert memory.memory.nbytes == memory.window.memory.nbytes > 0
    assert memory.some_pool is memory.window
    memory.full.copy_in([9, 5], memory.full.copy_out([1 << 19, 3]))
    memory.full.clear(range(1 << 20))
    plain = two_pools(False, False, window_pages=0)
    assert (plain.window.pages, plain.window.layers) == (0, 0)
    assert plain.some_pool is plain.full
    assert plain.memory.nbytes == plain.full.memory.nbytes
    assert plain.regions() == memory_of(plain.full).regions()
