"""A pool's pages are where its regions say, in every type and on every device.

What a transfer backend reads and writes is the address, so all is looked at by address.
"""

from __future__ import annotations

import pytest
import torch

from daemons.engine.device import KV_DTYPES, Place
from daemons.engine.kv_cache import FP8, KvPool, make_pool, memory_of, rounded
from tests.support.devices import EACH_DEVICE, Where, device
from tests.support.engines import memory_at

LAYERS, HEADS, PAGES, PAGE_SIZE, HEAD_DIM = 2, 3, 5, 4, 16
EACH_TYPE = pytest.mark.parametrize("dtype", KV_DTYPES.values(), ids=KV_DTYPES)


def pool_on(where: Where, dtype: torch.dtype) -> KvPool:
    place = Place(device(where), dtype)
    return make_pool(LAYERS, HEADS, PAGES, PAGE_SIZE, HEAD_DIM, place)


def page_of(pool: KvPool, layer: int, kind: int, head: int, page: int) -> torch.Tensor:
    """Return the numbers of a page, read by address: ``[page_size, head_dim]``, on the CPU."""
    (region,) = (
        r for r in memory_of(pool).regions() if (r.layer, r.kind, r.head) == (layer, kind, head)
    )
    at = region.address + page * region.page_bytes
    raw = memory_at(at, region.page_bytes, pool.memory.device).cpu()
    return raw.view(pool.memory.dtype).float().view(PAGE_SIZE, HEAD_DIM)


@EACH_DEVICE
@EACH_TYPE
@torch.inference_mode()
def test_what_a_layer_writes_lies_where_the_regions_say(where: Where, dtype: torch.dtype) -> None:
    pool = pool_on(where, dtype)
    kv = torch.randn(3, 2 * HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    kv = kv.to(torch.bfloat16 if dtype is FP8 else dtype)
    slots = [2 * PAGE_SIZE + 3, 0, 4 * PAGE_SIZE]
    pool.write(1, torch.tensor(slots, device=device(where)), kv.to(device(where)))
    wanted = (rounded(kv) if dtype is FP8 else kv).float()
    for kind in (0, 1):
        for head in range(HEADS):
            for page in range(PAGES):
                found = page_of(pool, 1, kind, head, page)
                for token, slot in enumerate(slots):
                    if slot // PAGE_SIZE == page:
                        row = found[slot % PAGE_SIZE]
                        assert torch.equal(row, wanted[token, kind * HEADS + head])
                        row.zero_()
                assert not found.any()
                assert not page_of(pool, 0, kind, head, page).any()


@EACH_DEVICE
@EACH_TYPE
@torch.inference_mode()
def test_what_a_peer_writes_by_address_is_what_attention_reads(
    where: Where, dtype: torch.dtype
) -> None:
    pool = pool_on(where, dtype)
    for number, region in enumerate(memory_of(pool).regions()):
        page = torch.full((PAGE_SIZE * HEAD_DIM,), float(number)).to(dtype).view(torch.uint8)
        into = memory_at(region.address + 3 * region.page_bytes, region.page_bytes, device(where))
        into.copy_(page.to(device(where)))
    for number, region in enumerate(memory_of(pool).regions()):
        found = pool.memory[region.layer, region.kind, region.head].float().cpu()
        assert (found[3] == number).all()
        assert not found[[0, 1, 2, 4]].any()


@EACH_DEVICE
@EACH_TYPE
@torch.inference_mode()
def test_pages_that_are_kept_in_host_memory_come_back_as_they_went(
    where: Where, dtype: torch.dtype
) -> None:
    pool = pool_on(where, dtype)
    noise = torch.randn(pool.memory.shape, generator=torch.Generator().manual_seed(2))
    pool.memory.copy_(noise.to(dtype))
    before = pool.memory.float().cpu().clone()
    content = pool.copy_out([2, 0])
    assert content.device.type == "cpu"
    pool.clear(range(PAGES))
    pool.copy_in([1, 3], content)
    after = pool.memory.float().cpu()
    assert torch.equal(after[:, :, :, [1, 3]], before[:, :, :, [2, 0]])
    assert not after[:, :, :, [0, 2, 4]].any()
