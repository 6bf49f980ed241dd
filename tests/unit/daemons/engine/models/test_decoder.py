from __future__ import annotations

import pytest
import torch

from daemons.engine.attention import paged_attention
from daemons.engine.batch import lay_out
from daemons.engine.device import Place
from daemons.engine.kv_cache import make_pool
from daemons.engine.models import load_model
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import KINDS, VOCABULARY, checkpoint

PLACE = Place(torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_logits_do_not_depend_on_the_company_or_the_chunks(kind: str) -> None:
    model, _ = load_model(checkpoint(kind), PLACE)
    spec = model.spec
    pool = make_pool(spec.layers, spec.kv_heads, 8, 16, spec.head_dim, PLACE)
    text = tuple(range(20, 50))

    def last_logits(*items: Item) -> torch.Tensor:
        batch = lay_out(items, 16, PLACE.device)
        hidden = model.hidden(batch, paged_attention(pool, batch))
        return model.logits(hidden[-1:])

    alone = last_logits(Item(RoomKey(1, 1), text, 0, (0, 1), True))
    company = Item(RoomKey(2, 1), tuple(range(7)), 0, (6,), True)
    last_logits(company, Item(RoomKey(3, 1), text[:13], 0, (2, 3), False))
    chunked = last_logits(company, Item(RoomKey(3, 1), text[13:], 13, (2, 3), True))
    assert alone.shape == (1, VOCABULARY)
    assert alone.dtype is torch.float32
    assert torch.allclose(alone, chunked, atol=1e-4)


@torch.inference_mode()
def test_a_tied_head_is_the_embedding() -> None:
    model, _ = load_model(checkpoint("llama-tied"), PLACE)
    rows = torch.randn(2, 64)
    normed = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + 1e-5) * model.norm
    assert torch.allclose(
        model.logits(rows), normed @ model.embedding(torch.arange(VOCABULARY)).T, atol=1e-4
    )
