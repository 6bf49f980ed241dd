"""Attention over a copy of the batch's contexts, where no kernel reads the pool as it is.

- So pages of fp8 are widened to the type that is computed in, and small pages become large ones. It
  costs reading and writing each context in each layer; pools that a kernel reads have none of it.
- A key or value is rounded to the pool's type before any attention sees it, also in the forward
  that makes it. So a text does not depend on chunks, nor on who computed its prompt.
"""

from __future__ import annotations

import torch

from daemons.engine.attention import PLAIN, Attend, PoolAttention, Rule
from daemons.engine.batch import Batch, lay_out
from daemons.engine.device import Place
from daemons.engine.kv_cache import FP8, KvPool, make_pool, rounded
from daemons.engine.step import Item


def gathered_attention(inner: PoolAttention, dtype: torch.dtype, page_size: int) -> PoolAttention:
    """Return attention over any pool by one over pools of ``dtype`` and ``page_size``.

    ``page_size`` is a multiple of the pool's.
    """

    def attention(pool: KvPool, batch: Batch) -> Attend:
        memory = pool.memory
        place = Place(memory.device, dtype)
        pages, items = regrouped(batch, page_size // pool.page_size)
        numbers = torch.tensor(pages, device=memory.device)
        large = len(pages) * pool.page_size // page_size
        copy = make_pool(1, pool.kv_heads, large, page_size, memory.shape[-1], place)
        over_copy = inner(copy, lay_out(items, page_size, memory.device))
        rows = copy.memory.view(2 * pool.kv_heads, len(pages), -1)

        def attend(
            layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
        ) -> torch.Tensor:
            pool.write(layer, batch.slots, kv)
            rows.copy_(_selected(pool.by_page[layer], numbers))
            return over_copy(0, query, _as_kept(kv, memory.dtype), rule)

        return attend

    return attention


def regrouped(batch: Batch, ratio: int) -> tuple[list[int], list[Item]]:
    """Return the pages of all contexts, and the items with larger pages in that order.

    ``ratio`` pages become one; what is missing to a whole one is filled up with an item's last.
    """
    pages: list[int] = []
    items = []
    for item, span in zip(batch.items, batch.spans, strict=True):
        first = len(pages) // ratio
        pages += span.pages
        pages += [span.pages[-1]] * (-len(pages) % ratio)
        own = tuple(range(first, len(pages) // ratio))
        items.append(Item(item.key, item.tokens, item.start, own, item.samples))
    return pages, items


def _selected(by_page: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    if by_page.dtype is not FP8:
        return by_page.index_select(1, numbers)
    return by_page.view(torch.uint8).index_select(1, numbers).view(FP8)


def _as_kept(kv: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return rounded(kv).to(kv.dtype) if dtype is FP8 else kv
