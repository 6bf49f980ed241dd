"""A forward keeps to its device and asks it nothing, so that steps can be queued and recorded.

On ``meta``, torch's device without data, a number that is asked for is an error, and so are most
operations on tensors of two devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from daemons.engine.attention import paged_attention
from daemons.engine.attention_cuda import varlen_attention
from daemons.engine.batch import lay_out
from daemons.engine.device import Place
from daemons.engine.gathered import gathered_attention
from daemons.engine.kernels import Attention
from daemons.engine.kv_cache import make_pool
from daemons.engine.models import decoder, read_spec
from daemons.engine.quant_linear import forms_of
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import KINDS, VOCABULARY, checkpoint

META = torch.device("meta")
PAGES = 16
DENSE = [kind for kind in KINDS if "moe" not in kind]  # others ask which experts are chosen
WAYS: dict[str, tuple[int, Attention]] = {
    "paged": (16, paged_attention),
    "varlen": (256, varlen_attention),
    "gathered": (16, gathered_attention(varlen_attention, torch.bfloat16, 256)),
}


class Absent:
    """Weights of every name and shape, without data."""

    def __contains__(self, name: str) -> bool:
        return True

    def take(
        self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype or torch.bfloat16, device=META)

    def take_rows(self, names: Sequence[str], rows: Sequence[int], *rest: int) -> torch.Tensor:
        return torch.empty(sum(rows), *rest, dtype=torch.bfloat16, device=META)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", DENSE)
@torch.inference_mode()
def test_a_forward_asks_its_device_nothing(kind: str, way: str) -> None:
    page_size, attention = WAYS[way]
    place = Place(META, torch.bfloat16)
    model = decoder.build(read_spec(checkpoint(kind)), Absent(), place, forms_of("auto"))  # type: ignore[arg-type]
    spec = model.spec
    pool = make_pool(spec.layers, spec.kv_heads, PAGES, page_size, spec.head_dim, place)
    parts = {1: (40, 0, (0, 1, 2)), 2: (20, 30, (9, 8, 11, 10)), 3: (1, 33, (15, 4, 7))}
    items = [
        Item(RoomKey(room, 1), (5,) * tokens, start, pages, samples=True)
        for room, (tokens, start, pages) in parts.items()
    ]
    batch = lay_out(items, page_size, META)
    logits = model.logits(model.hidden(batch, attention(pool, batch)))
    assert logits.device == META
    assert logits.shape == (61, VOCABULARY)


def test_what_would_ask_is_an_error_there() -> None:
    number = torch.zeros(1, device=META)
    with pytest.raises(RuntimeError, match="meta"):
        number.item()
    with pytest.raises(RuntimeError, match="device"):
        number + torch.zeros(1).expand(2)
