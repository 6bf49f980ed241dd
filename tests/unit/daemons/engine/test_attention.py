"""Attention over pages agrees with one written out token by token, for every shape in use."""

from __future__ import annotations

import math
from itertools import count

import pytest
import torch

from daemons.engine.attention import PLAIN, Rule, paged_attention
from daemons.engine.batch import lay_out
from daemons.engine.device import Place
from daemons.engine.kv_cache import KvPool, make_pool
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey

HEAD_DIM = 16
# (tokens, start) of the items of one batch: whole prompts, later chunks, decode steps.
STEPS = ((5, 0), (1, 0), (1, 40), (7, 33), (64, 0), (3, 64), (1, 63), (1, 15), (16, 16))
RULES = {
    "plain": PLAIN,
    "window 1": Rule(window=1),
    "window 7": Rule(window=7),
    "window 16": Rule(window=16, scale=0.5),
    "scale": Rule(scale=0.1),
    "softcap": Rule(softcap=2.0),
    "all": Rule(window=7, scale=0.5, softcap=2.0),
}
LIMIT = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def naive(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, rule: Rule
) -> torch.Tensor:
    """One item in fp64: query [tokens, heads, dim], keys and values [kv_heads, context, dim]."""
    tokens, heads, dim = query.shape
    out = torch.empty(tokens, heads, dim, dtype=torch.float64)
    for token in range(tokens):
        for head in range(heads):
            own = head * keys.shape[0] // heads
            end = start + token + 1
            seen = slice(0 if rule.window is None else max(0, end - rule.window), end)
            scores = keys[own, seen].double() @ query[token, head].double()
            scores *= rule.scale or 1 / math.sqrt(dim)
            if rule.softcap is not None:
                scores = rule.softcap * torch.tanh(scores / rule.softcap)
            out[token, head] = scores.softmax(0) @ values[own, seen].double()
    return out.flatten(1)


def pages_for(context: int, page_size: int, free: list[int], *, scattered: bool) -> tuple[int, ...]:
    needed = -(-context // page_size)
    pages = [free.pop(0) for _ in range(needed)]
    return tuple(reversed(pages)) if scattered else tuple(pages)


def fill(pool: KvPool, layer: int, pages: tuple[int, ...], kv: torch.Tensor) -> None:
    """Put the past of an item in the pool, token by token: kv [past, 2, kv_heads, dim]."""
    for position, token in enumerate(kv):
        page, place = pages[position // pool.page_size], position % pool.page_size
        pool.memory[layer, :, :, page, place] = token


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("scattered", [False, True], ids=["neighbours", "scattered"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (4, 1)])
def test_paged_attention_is_attention(
    *,
    heads: int,
    kv_heads: int,
    page_size: int,
    scattered: bool,
    dtype: torch.dtype,
    rule: str,
) -> None:
    torch.manual_seed(heads * 100 + page_size)
    pool = make_pool(
        2, kv_heads, 512 // page_size + 16, page_size, HEAD_DIM, Place(torch.device("cpu"), dtype)
    )
    pool.memory.fill_(math.nan)  # a slot that nobody wrote must never be read
    free = list(range(pool.pages))
    items, texts = [], []
    for room, (tokens, start) in zip(count(1), STEPS, strict=False):
        pages = pages_for(start + tokens, page_size, free, scattered=scattered)
        kv = torch.randn(start + tokens, 2, kv_heads, HEAD_DIM).to(dtype)
        fill(pool, 1, pages, kv[:start])
        items.append(Item(RoomKey(room, 1), (0,) * tokens, start, pages, samples=True))
        texts.append(kv)
    batch = lay_out(items, page_size, torch.device("cpu"))
    query = torch.randn(len(batch.ids), heads, HEAD_DIM).to(dtype)
    new = torch.cat([kv[item.start :].flatten(1, 2) for item, kv in zip(items, texts, strict=True)])
    with torch.inference_mode():
        found = paged_attention(pool, batch)(1, query, new, RULES[rule]).double()
    for span, kv in zip(batch.spans, texts, strict=True):
        own = slice(span.first, span.last + 1)
        keys, values = kv.permute(1, 2, 0, 3)
        wanted = naive(query[own], keys, values, span.start, RULES[rule])
        assert (found[own] - wanted).abs().max() <= LIMIT[dtype]


def test_the_result_does_not_depend_on_what_lies_behind_the_context() -> None:
    pool = make_pool(1, 1, 4, 4, HEAD_DIM, Place(torch.device("cpu"), torch.float32))
    batch = lay_out([Item(RoomKey(1, 1), (0,) * 2, 1, (2, 3), True)], 4, torch.device("cpu"))
    query, kv = torch.randn(2, 2, HEAD_DIM), torch.randn(2, 2, HEAD_DIM)
    attend = paged_attention(pool, batch)
    before = attend(0, query, kv)
    pool.memory[:, :, :, 2, 3] = 1e9
    pool.memory[:, :, :, 3] = 1e9
    assert torch.equal(attend(0, query, kv), before)
