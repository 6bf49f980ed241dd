"""Every attention is the one written out token by token, in every shape, rule, type and layout."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from itertools import count

import pytest
import torch

from daemons.engine.attention import PLAIN, Attend, Rule, paged_attention
from daemons.engine.attention_cuda import VARLEN_PAGE
from daemons.engine.batch import Batch, lay_out
from daemons.engine.device import Place
from daemons.engine.kernels import choose_attention
from daemons.engine.kv_cache import KvPool, make_pool
from daemons.engine.native.attention import native_attention
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey
from tests.support import devices, native

Attention = Callable[[KvPool, Batch], Attend]


def chosen(pool: KvPool, batch: Batch) -> Attend:
    """What an engine would use for this pool on its device: a kernel, or what stands in for it."""
    memory = pool.memory
    place = Place(memory.device, memory.dtype)

    def attend(
        layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
    ) -> torch.Tensor:
        probe = make_pool(1, pool.kv_heads, 1, pool.page_size, memory.shape[-1], place)
        attention = choose_attention(probe, query.shape[1], None)
        return attention(pool, batch)(layer, query, kv, rule)

    return attend


# name -> (where it runs, how it is had)
WAYS: dict[str, tuple[devices.Where, Callable[[], Attention]]] = {
    "torch": ("cpu", lambda: paged_attention),
    "native": ("cpu", lambda: native_attention(native.team(1))),
    "native-2-threads": ("cpu", lambda: native_attention(native.team(2))),
    "gpu": ("gpu", lambda: chosen),
}
RULES = {
    "plain": PLAIN,
    "window 1": Rule(window=1),
    "window 7": Rule(window=7),
    "window 130, scale": Rule(window=130, scale=0.5),
    "softcap": Rule(softcap=2.0),
    "all": Rule(window=7, scale=0.5, softcap=2.0),
}
SHAPES = ((4, 4, 16), (6, 2, 64), (4, 1, 48), (9, 3, 64), (2, 1, 128), (8, 2, 80), (3, 3, 6))
# (tokens, start) of a batch's items: whole prompts, later chunks, steps, all around the kernels'
# blocks of 128 positions.
MIXED = ((5, 0), (1, 0), (1, 40), (7, 33), (130, 0), (3, 127), (1, 128), (1, 700), (16, 250))
STEPS = ((1, 0), (1, 127), (1, 128), (1, 255), (1, 900))
ALONE = ((1, 1300),)
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
GPU_LIMIT = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
PAGE_SIZES = {"gpu": (16, VARLEN_PAGE)}  # else 16; a kernel on CUDA takes only large ones


def naive(query: torch.Tensor, kv: torch.Tensor, start: int, rule: Rule) -> torch.Tensor:
    """One item in fp64: query [tokens, heads, dim], kv [context, 2, kv_heads, dim]."""
    tokens, heads, dim = query.shape
    keys, values = kv.double().permute(1, 2, 0, 3).repeat_interleave(heads // kv.shape[2], dim=1)
    scores = query.double().transpose(0, 1) @ keys.transpose(1, 2)  # [heads, tokens, context]
    scores *= rule.scale or 1 / math.sqrt(dim)
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    own = start + torch.arange(tokens).unsqueeze(1)
    seen = torch.arange(len(kv)) <= own
    if rule.window is not None:
        seen &= torch.arange(len(kv)) > own - rule.window
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    return (weights @ values).transpose(0, 1).flatten(1)


def expect_agreement(
    way: str,
    steps: tuple[tuple[int, int], ...],
    shape: tuple[int, int, int],
    rule: Rule,
    dtype: torch.dtype,
    page_size: int,
    *,
    scattered: bool,
) -> None:
    heads, kv_heads, head_dim = shape
    where, have = WAYS[way]
    device, attention = devices.device(where), have()
    draw = torch.Generator().manual_seed(zlib.crc32(repr((steps, shape, page_size)).encode()))
    pages = sum(-(-sum(step) // page_size) for step in steps) + 3
    pool = make_pool(2, kv_heads, pages, page_size, head_dim, Place(device, dtype))
    pool.memory.fill_(math.nan)  # a slot that nobody wrote must never be read
    free = torch.randperm(pages, generator=draw).tolist() if scattered else list(range(pages))
    items, texts = [], []
    for room, (tokens, start) in zip(count(1), steps, strict=False):
        needed = -(-(tokens + start) // page_size)
        own, free = tuple(free[:needed]), free[needed:]
        kv = torch.randn(start + tokens, 2, kv_heads, head_dim, generator=draw).to(dtype)
        for position, token in enumerate(kv[:start]):
            place = own[position // page_size], position % page_size
            pool.memory[1, :, :, *place] = token.to(device)
        items.append(Item(RoomKey(room, 1), (0,) * tokens, start, own, samples=True))
        texts.append(kv)
    batch = lay_out(items, page_size, device)
    query = torch.randn(len(batch.ids), heads, head_dim, generator=draw).to(dtype)
    new = torch.cat([kv[item.start :].flatten(1, 2) for item, kv in zip(items, texts, strict=True)])
    # As a model hands them over: parts of one matrix.
    both = torch.cat((query, new), dim=1).to(device)
    with torch.inference_mode():
        found = attention(pool, batch)(1, both[:, :heads], both[:, heads:], rule).double().cpu()
    for span, kv in zip(batch.spans, texts, strict=True):
        own_rows = slice(span.first, span.last + 1)
        wanted = naive(query[own_rows], kv, span.start, rule)
        limit = (GPU_LIMIT if where == "gpu" else LIMIT)[dtype]
        assert (found[own_rows] - wanted).abs().max() <= limit
        stored = pool.memory[1][:, :, list(span.pages)].flatten(2, 3)[:, :, : span.context].cpu()
        assert torch.equal(stored.permute(2, 0, 1, 3), kv)


EACH_WAY = [
    pytest.param(way, marks=[pytest.mark.gpu] if where == "gpu" else [])
    for way, (where, _) in WAYS.items()
]
EACH_TYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
@EACH_TYPE
@pytest.mark.parametrize("way", EACH_WAY)
def test_it_is_attention_for_any_shape(
    way: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    for steps in (MIXED, STEPS, ALONE):
        for page_size in PAGE_SIZES.get(way, (16,)):
            expect_agreement(way, steps, shape, PLAIN, dtype, page_size, scattered=True)


@pytest.mark.parametrize("rule", RULES)
@EACH_TYPE
@pytest.mark.parametrize("way", EACH_WAY)
def test_it_keeps_to_any_rule(way: str, dtype: torch.dtype, rule: str) -> None:
    for steps in (MIXED, STEPS, ALONE):
        for size in PAGE_SIZES.get(way, (16,)):
            expect_agreement(way, steps, (6, 2, 64), RULES[rule], dtype, size, scattered=True)


@pytest.mark.parametrize("scattered", [False, True], ids=["neighbours", "scattered"])
@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 256])
@EACH_TYPE
@pytest.mark.parametrize("way", EACH_WAY)
def test_it_finds_its_way_through_pages(
    *, way: str, dtype: torch.dtype, page_size: int, scattered: bool
) -> None:
    expect_agreement(way, MIXED, (6, 2, 64), PLAIN, dtype, page_size, scattered=scattered)
    expect_agreement(way, MIXED, (4, 2, 16), RULES["all"], dtype, page_size, scattered=scattered)
