from __future__ import annotations

import pytest
import torch

from daemons.engine.attention import Rule, paged_attention
from daemons.engine.attention_cuda import VARLEN_PAGE, varlen_attention, varlen_works
from daemons.engine.batch import lay_out
from daemons.engine.device import Place
from daemons.engine.gathered import gathered_attention
from daemons.engine.kernels import choose_for_pool
from daemons.engine.kv_cache import FP8, make_pool, rounded
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = Place(torch.device("cuda"), torch.bfloat16)
STEPS = [(1, 700), (1, 0), (1, 255), (1, 256)]
MIXED = [(5, 0), (1, 700), (300, 100), (1, 0)]


def items_of(steps: list[tuple[int, int]], page_size: int) -> list[Item]:
    needed = 1024 // page_size
    return [
        Item(
            RoomKey(room + 1, 1),
            (0,) * n,
            start,
            tuple(range(room * needed, (room + 1) * needed)),
            True,
        )
        for room, (n, start) in enumerate(steps)
    ]


@pytest.mark.parametrize("steps", [MIXED, STEPS], ids=["mixed", "steps"])
@pytest.mark.parametrize("window", [None, 1, 100, 512])
@pytest.mark.parametrize("page_size", [16, 64, 256, 512])
@torch.inference_mode()
def test_what_is_chosen_agrees_with_the_general_way(
    page_size: int, window: int | None, steps: list[tuple[int, int]]
) -> None:
    pool = make_pool(1, 2, 8192 // page_size, page_size, 64, CUDA)
    attention = choose_for_pool(pool, 4)
    pool.memory.normal_()
    batch = lay_out(items_of(steps, page_size), page_size, CUDA.device)
    query = torch.randn(len(batch.ids), 4, 64, dtype=CUDA.dtype, device=CUDA.device)
    kv = torch.randn(len(batch.ids), 4, 64, dtype=CUDA.dtype, device=CUDA.device)
    rule = Rule(window=window, scale=0.1)
    wanted = paged_attention(pool, batch)(0, query, kv, rule)
    found = attention(pool, batch)(0, query, kv, rule)
    assert torch.allclose(found, wanted, atol=3e-2, rtol=3e-2)


def test_the_kernel_takes_large_pages_and_small_ones_are_gathered_for_it() -> None:
    """What the default of ``engine.page_size`` costs on CUDA is known: a copy in each layer."""
    assert varlen_works(make_pool(1, 2, 2, VARLEN_PAGE, 64, CUDA), heads=4)
    assert choose_for_pool(make_pool(1, 2, 2, VARLEN_PAGE, 64, CUDA), 4) is varlen_attention
    small = make_pool(1, 2, 32, 16, 64, CUDA)
    if not varlen_works(small, heads=4):
        assert choose_for_pool(small, 4) is not paged_attention


@torch.inference_mode()
def test_pages_of_fp8_are_attended_to_as_what_they_were_rounded_to() -> None:
    small = make_pool(1, 2, 64, 16, 64, Place(CUDA.device, FP8))
    wide = make_pool(1, 2, 64 * 16 // 256, 256, 64, CUDA)
    small.memory.copy_(rounded(torch.randn(small.memory.shape, device=CUDA.device)))
    wide.memory.view(2, 2, 64, 16, 64).copy_(small.memory[0])
    query = torch.randn(4, 4, 64, dtype=CUDA.dtype, device=CUDA.device)
    kv = torch.randn(4, 4, 64, dtype=CUDA.dtype, device=CUDA.device)
    steps = [(1, 100), (3, 200)]
    found = choose_for_pool(small, 4, CUDA.dtype)(
        small,
        lay_out(
            [
                Item(
                    RoomKey(n + 1, 1), (0,) * count, start, tuple(range(16 * n, 16 * n + 16)), True
                )
                for n, (count, start) in enumerate(steps)
            ],
            16,
            CUDA.device,
        ),
    )(0, query, kv)
    large = [
        Item(RoomKey(n + 1, 1), (0,) * count, start, (n,), True)
        for n, (count, start) in enumerate(steps)
    ]
    over = gathered_attention(paged_attention, CUDA.dtype, 256)
    wanted = over(wide, lay_out(large, 256, CUDA.device))(0, query, rounded(kv).to(CUDA.dtype))
    assert torch.allclose(found, wanted, atol=3e-2, rtol=3e-2)
    assert (small.by_slot[0].float() == wide.by_slot[0].float()).all()
