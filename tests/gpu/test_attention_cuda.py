from __future__ import annotations

import pytest
import torch

from daemons.engine.attention import Rule, paged_attention
from daemons.engine.attention_cuda import varlen_attention, varlen_works
from daemons.engine.batch import lay_out
from daemons.engine.device import Place
from daemons.engine.kv_cache import make_pool
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("window", [None, 1, 100, 512])
@pytest.mark.parametrize("page_size", [16, 64, 256])
def test_the_variable_length_kernel_agrees_with_the_general_way(
    page_size: int, window: int | None
) -> None:
    place = Place(torch.device("cuda"), torch.bfloat16)
    pool = make_pool(1, 2, 8192 // page_size, page_size, 64, place)
    if not varlen_works(pool, heads=4):
        pytest.skip(f"the kernel takes no pages of {page_size}")
    pool.memory.normal_()
    needed = 1024 // page_size
    steps = [(5, 0), (1, 700), (300, 100), (1, 0)]
    items = [
        Item(
            RoomKey(room + 1, 1),
            (0,) * n,
            start,
            tuple(range(room * needed, (room + 1) * needed)),
            True,
        )
        for room, (n, start) in enumerate(steps)
    ]
    batch = lay_out(items, page_size, place.device)
    query = torch.randn(len(batch.ids), 4, 64, dtype=place.dtype, device=place.device)
    kv = torch.randn(len(batch.ids), 4, 64, dtype=place.dtype, device=place.device)
    rule = Rule(window=window, scale=0.1)
    with torch.inference_mode():
        wanted = paged_attention(pool, batch)(0, query, kv, rule)
        found = varlen_attention(pool, batch)(0, query, kv, rule)
    assert torch.allclose(found, wanted, atol=3e-2, rtol=3e-2)
