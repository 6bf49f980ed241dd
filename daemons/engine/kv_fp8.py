"""Keys and values in eight bits (fp8, e4m3), widened for attention.

- A key or value is rounded once, when it is written; attention never sees it otherwise, not even in
  the forward that makes it. So a text does not depend on chunks, nor on who computed its prompt.
- Nothing is scaled: of a value beyond 448 the largest number is kept.
- Each layer widens the pages of the batch's contexts into a small pool in the type that is computed
  in, and the usual attention runs over that. It is half the memory and half the bytes on the way to
  decode, for more reading and writing in each layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from daemons.engine.attention import PLAIN, Attend, Rule
from daemons.engine.batch import Batch, lay_out
from daemons.engine.device import Place
from daemons.engine.kv_cache import FP8, KvPool, make_pool, rounded
from daemons.engine.step import Item


def attention_over_fp8(
    inner: Callable[[KvPool, Batch], Attend], dtype: torch.dtype
) -> Callable[[KvPool, Batch], Attend]:
    """Return attention over a pool of fp8, by one over pools of ``dtype``."""

    def attention(pool: KvPool, batch: Batch) -> Attend:
        pages, items = renumbered(batch)
        memory = pool.memory
        numbers = torch.tensor(pages, device=memory.device)
        place = Place(memory.device, dtype)
        wide = make_pool(1, pool.kv_heads, len(pages), pool.page_size, memory.shape[-1], place)
        over_wide = inner(wide, lay_out(items, pool.page_size, memory.device))
        stored = pool.by_page.view(torch.uint8)

        def attend(
            layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
        ) -> torch.Tensor:
            pool.write(layer, batch.slots, kv)
            wide.by_page[0].copy_(stored[layer].index_select(1, numbers).view(FP8))
            return over_wide(0, query, rounded(kv).to(dtype), rule)

        return attend

    return attention


def renumbered(batch: Batch) -> tuple[list[int], list[Item]]:
    """Return the pages of a batch's contexts, and its items with places in that list for pages."""
    places: dict[int, int] = {}
    items = []
    for item, span in zip(batch.items, batch.spans, strict=True):
        own = tuple(places.setdefault(page, len(places)) for page in span.pages)
        items.append(Item(item.key, item.tokens, item.start, own, item.samples))
    return list(places), items
