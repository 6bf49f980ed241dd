from __future__ import annotations

import pytest
import torch

from daemons.engine.attention_cuda import varlen_attention
from daemons.engine.batch import lay_out
from daemons.engine.device import Place
from daemons.engine.graphs import recorded
from daemons.engine.kv_cache import make_memory
from daemons.engine.models import load_model
from daemons.engine.parts import ByParts
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
PAGE_SIZE = 256


@pytest.mark.parametrize("weights", ["auto", "int8", "int4"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "gemma3"])
@torch.inference_mode()
def test_a_replayed_step_is_the_plain_one_and_writes_what_it_writes(
    kind: str, weights: str
) -> None:
    place = Place(torch.device("cuda"), torch.bfloat16)
    model, _ = load_model(checkpoint(kind), place, None, weights)  # type: ignore[arg-type]
    spec = model.spec
    memory = make_memory(
        [window is not None for window in spec.windows],
        kv_heads=spec.kv_heads,
        pages=16,
        window_pages=16,
        page_size=PAGE_SIZE,
        head_dim=spec.head_dim,
        place=place,
    )
    attention = ByParts(varlen_attention)
    graphs = recorded(model, memory, attention, 8, 512)
    assert graphs is not None
    for rooms in (1, 3, 8, 2):
        memory.memory.normal_()
        before = memory.memory.clone()
        items = [
            Item(RoomKey(n + 1, 1), (5 + n,), start, (2 * n, 2 * n + 1), True, window, 0)
            for n, start in enumerate(100 + 37 * n for n in range(rooms))
            for window in [(15 - 2 * n, 14 - 2 * n)]  # from before what is seen
        ]
        batch = lay_out(items, PAGE_SIZE, place.device)
        found = graphs.hidden(batch)
        assert found is not None
        found, after = found.clone(), memory.memory.clone()
        memory.memory.copy_(before)
        wanted = model.hidden(batch, attention(memory, batch))
        assert torch.allclose(found, wanted, atol=3e-2, rtol=3e-2)
        assert torch.allclose(after, memory.memory, atol=3e-2, rtol=3e-2)
