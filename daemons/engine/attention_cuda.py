"""Attention over pages on CUDA, by torch's variable-length kernel with a block table.

Where that kernel is absent, or refuses this pool, the general way of ``attention`` is used; so it
is for layers with capped scores, which the kernel does not know.
"""

from __future__ import annotations

import torch

from daemons.engine.attention import PLAIN, Attend, Rule, paged_attention
from daemons.engine.batch import Batch, Span, lay_out
from daemons.engine.kv_cache import KvPool
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey

_TOLERANCE = 3e-2  # bf16, outputs of about 1
_TEST_ROOM = RoomKey(0, 0)


def varlen_attention(pool: KvPool, batch: Batch) -> Attend:
    """Return attention for one forward, all items in one kernel."""
    from torch.nn.attention.varlen import varlen_attn

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=pool.memory.device)

    spans = batch.spans
    firsts = ints([*(span.first for span in spans), spans[-1].last + 1])
    used = ints([span.context for span in spans])
    table = _block_table(spans).to(pool.memory.device)
    longest_query = max(span.tokens for span in spans)
    longest_context = max(span.context for span in spans)

    general = paged_attention(pool, batch)

    def attend(
        layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
    ) -> torch.Tensor:
        if rule.softcap is not None:
            return general(layer, query, kv, rule)
        pool.write(layer, batch.slots, kv)
        keys, values = pool.memory[layer].permute(
            0, 2, 3, 1, 4
        )  # [pages, page, kv_heads, head_dim]
        out = varlen_attn(
            query,
            keys,
            values,
            firsts,
            None,
            longest_query,
            longest_context,
            scale=rule.scale,
            # The kernel counts the tokens before a query, not itself.
            window_size=(-1 if rule.window is None else rule.window - 1, 0),
            enable_gqa=query.shape[1] != pool.kv_heads,
            seqused_k=used,
            block_table=table,
        )
        assert isinstance(out, torch.Tensor)
        return out.flatten(1)

    return attend


@torch.inference_mode()
def varlen_works(pool: KvPool, heads: int) -> bool:
    """Say whether the kernel takes this pool and agrees with the general way; clears page 0."""
    head_dim = pool.memory.shape[-1]
    tokens = min(3, pool.page_size)
    item = Item(_TEST_ROOM, (0,) * tokens, 0, (0,), samples=False)
    batch = lay_out([item], pool.page_size, pool.memory.device)
    like = pool.memory
    query = torch.randn(tokens, heads, head_dim, dtype=like.dtype, device=like.device)
    kv = torch.randn(tokens, 2 * pool.kv_heads, head_dim, dtype=like.dtype, device=like.device)
    wanted = paged_attention(pool, batch)(0, query, kv)
    try:
        found = varlen_attention(pool, batch)(0, query, kv)
    except (ImportError, RuntimeError, TypeError, ValueError, NotImplementedError):
        return False
    finally:
        pool.clear(range(1))
    return bool(torch.allclose(found, wanted, atol=_TOLERANCE, rtol=_TOLERANCE))


def _block_table(spans: tuple[Span, ...]) -> torch.Tensor:
    width = max(len(span.pages) for span in spans)
    rows = [[*span.pages, *[0] * (width - len(span.pages))] for span in spans]
    return torch.tensor(rows, dtype=torch.int32)
