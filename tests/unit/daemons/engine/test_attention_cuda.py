from __future__ import annotations

import torch

from daemons.engine.attention_cuda import varlen_works
from daemons.engine.device import Place
from daemons.engine.kv_cache import make_pool


def test_a_pool_that_the_kernel_refuses_is_told_and_left_as_it_was() -> None:
    pool = make_pool(1, 2, 4, 16, 16, Place(torch.device("cpu"), torch.float32))
    assert not varlen_works(pool, heads=4)
    assert not pool.memory.any()
