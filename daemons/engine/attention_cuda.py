"""Attention over pages on CUDA, by torch's variable-length kernel with a block table.

- The kernel (FlashAttention 2) takes bf16, heads of a multiple of 8 up to 256, and pages of a
  multiple of 256 tokens. Where it is absent or refuses a pool, ``kernels`` chooses another way.
- It knows no capped scores: layers that have them take the general way of ``attention``.
- A step sees all of its context, so without a window it is no causal attention to the kernel, which
  then lets the query heads of a group share their keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from daemons.engine.attention import PLAIN, Attend, Rule, paged_attention
from daemons.engine.batch import Batch, Span, lay_out
from daemons.engine.kv_cache import KvPool
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey

VARLEN_PAGE = 256  # tokens: pages that the kernel takes are a multiple of it
_TOLERANCE = 3e-2  # bf16, outputs of about 1
_TEST_ROOM = RoomKey(0, 0)


@dataclass(frozen=True, slots=True)
class Layout:
    """A batch as the kernel reads it.

    Attributes:
        slots: int64 ``[tokens]``, where keys and values are written.
        firsts: int32 ``[items + 1]``, the row of each item's first token, and the number of rows.
        used: int32 ``[items]``, tokens of each context.
        table: int32 ``[items, pages]``; entries beyond a context are not read.
        longest_query: tokens of the longest item.
        longest_context: at least the longest context.
    """

    slots: torch.Tensor
    firsts: torch.Tensor
    used: torch.Tensor
    table: torch.Tensor
    longest_query: int
    longest_context: int


def varlen_attention(pool: KvPool, batch: Batch) -> Attend:
    """Return attention for one forward, all items in one kernel."""
    over_layout = attend_over(pool, layout_of(batch))
    general = paged_attention(pool, batch)

    def attend(
        layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
    ) -> torch.Tensor:
        if rule.softcap is not None:
            return general(layer, query, kv, rule)
        return over_layout(layer, query, kv, rule)

    return attend


def layout_of(batch: Batch) -> Layout:
    """Return the layout of a batch on its device."""

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=batch.device)

    spans = batch.spans
    return Layout(
        slots=batch.slots,
        firsts=ints([*(span.first for span in spans), spans[-1].last + 1]),
        used=ints([span.context for span in spans]),
        table=_block_table(spans).to(batch.device),
        longest_query=max(span.tokens for span in spans),
        longest_context=max(span.context for span in spans),
    )


def attend_over(pool: KvPool, layout: Layout) -> Attend:
    """Return the kernel's attention; every call uses the tensors of ``layout`` as they are then."""
    from torch.nn.attention.varlen import varlen_attn

    def attend(
        layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
    ) -> torch.Tensor:
        pool.write(layer, layout.slots, kv)
        # each [pages, page_size, kv_heads, head_dim]
        keys, values = pool.memory[layer].permute(0, 2, 3, 1, 4)
        out = varlen_attn(
            query,
            keys,
            values,
            layout.firsts,
            None,  # contexts begin where their pages do
            layout.longest_query,
            layout.longest_context,
            scale=rule.scale,
            window_size=kernel_window(rule.window, layout.longest_query),
            enable_gqa=query.shape[1] != pool.kv_heads,
            seqused_k=layout.used,
            block_table=layout.table,
        )
        assert isinstance(out, torch.Tensor)
        return out.flatten(1)

    return attend


def kernel_window(window: int | None, longest_query: int) -> tuple[int, int]:
    """Return how many tokens before and after a query's own the kernel lets it see; -1: all."""
    if window is not None:
        return window - 1, 0  # the kernel counts the tokens before a query, not itself
    return (-1, -1) if longest_query == 1 else (-1, 0)


@torch.inference_mode()
def varlen_works(pool: KvPool, heads: int) -> bool:
    """Say whether the kernel takes this pool and agrees with the general way; clears page 0.

    It is asked for a prompt and for a step, which the kernel computes in another way.
    """
    tokens = min(3, pool.page_size)
    try:
        return all(_agrees(pool, heads, *part) for part in ((tokens, 0), (1, tokens - 1)))
    except (ImportError, RuntimeError, TypeError, ValueError, NotImplementedError):
        return False
    finally:
        pool.clear(range(1))


def _agrees(pool: KvPool, heads: int, tokens: int, start: int) -> bool:
    memory, shape = pool.memory, (tokens, heads + 2 * pool.kv_heads, pool.memory.shape[-1])
    item = Item(_TEST_ROOM, (0,) * tokens, start, (0,), samples=False)
    batch = lay_out([item], pool.page_size, memory.device)
    both = torch.randn(*shape, dtype=memory.dtype, device=memory.device)  # as models hand it over
    query, kv = both[:, :heads], both[:, heads:]
    wanted = paged_attention(pool, batch)(0, query, kv)
    found = varlen_attention(pool, batch)(0, query, kv)
    return bool(torch.allclose(found, wanted, atol=_TOLERANCE, rtol=_TOLERANCE))


def _block_table(spans: tuple[Span, ...]) -> torch.Tensor:
    width = max(len(span.pages) for span in spans)
    rows = [[*span.pages, *[0] * (width - len(span.pages))] for span in spans]
    return torch.tensor(rows, dtype=torch.int32)
