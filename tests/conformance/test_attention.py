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
from daemons.engine.kernels import Attention, choose_for_pool
from daemons.engine.kv_cache import KvPool, make_memory, make_pool, memory_of
from daemons.engine.native.attention import native_attention
from daemons.engine.parts import ByParts
from daemons.engine.step import Item
from daemons.kv.window import first_needed_page
from daemons.protocol.ids import RoomKey
from tests.support import devices, native


def chosen(pool: KvPool, batch: Batch) -> Attend:
    """What an engine would use for this pool on its device: a kernel, or what stands in for it."""
    memory = pool.memory
    place = Place(memory.device, memory.dtype)

    def attend(
        layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
    ) -> torch.Tensor:
        probe = make_pool(1, pool.kv_heads, 1, pool.page_size, memory.shape[-1], place)
        attention = choose_for_pool(probe, query.shape[1])
        return attention(pool, batch)(layer, query, kv, rule)

    return attend


# name -> (where it runs, how it is had)
WAYS: dict[str, tuple[devices.Where, Callable[[], Attention]]] = {
    "torch": ("cpu", lambda: ByParts(paged_attention)),
    "native": ("cpu", lambda: native_attention(native.team(1))),
    "native-2-threads": ("cpu", lambda: native_attention(native.team(2))),
    "gpu": ("gpu", lambda: ByParts(chosen)),
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
        attend = attention(memory_of(pool), batch)
        found = attend(1, both[:, :heads], both[:, heads:], rule).double().cpu()
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


# Of a rule, the largest window of the model: its own, or another layer's.
WINDOWED = {"window 130, scale": 130, "all": 30}


@pytest.mark.parametrize("page_size", [1, 16, 256])
@pytest.mark.parametrize("rule", WINDOWED)
@EACH_TYPE
@pytest.mark.parametrize("way", EACH_WAY)
@torch.inference_mode()
def test_layers_with_a_window_find_their_own_pages(
    way: str, dtype: torch.dtype, rule: str, page_size: int
) -> None:
    expect_agreement_of_both_pools(way, MIXED, RULES[rule], WINDOWED[rule], dtype, page_size)


def expect_agreement_of_both_pools(
    way: str,
    steps: tuple[tuple[int, int], ...],
    rule: Rule,
    largest: int,
    dtype: torch.dtype,
    page_size: int,
) -> None:
    """A layer with a window and one without, in one forward."""
    heads, kv_heads, head_dim = 6, 2, 64
    where, have = WAYS[way]
    device, attention = devices.device(where), have()
    draw = torch.Generator().manual_seed(zlib.crc32(repr((steps, rule, page_size)).encode()))
    pages = sum(-(-sum(step) // page_size) for step in steps) + 3
    memory = make_memory(
        [True, False],
        kv_heads=kv_heads,
        pages=pages,
        window_pages=pages + 5,
        page_size=page_size,
        head_dim=head_dim,
        place=Place(device, dtype),
    )
    memory.memory.fill_(math.nan)
    free = torch.randperm(pages, generator=draw).tolist()
    free_windows = torch.randperm(pages + 5, generator=draw).tolist()
    items, texts = [], []
    for room, (tokens, start) in zip(count(1), steps, strict=False):
        context = start + tokens
        kv = torch.randn(2, context, 2, kv_heads, head_dim, generator=draw).to(dtype)
        first = first_needed_page(start, largest, page_size)
        first -= room % 2 if first else 0  # a table may begin before what is needed
        own = tuple(free.pop() for _ in range(-(-context // page_size)))
        near = tuple(free_windows.pop() for _ in range(first, -(-context // page_size)))
        for layer, table, begin in ((0, near, first), (1, own, 0)):
            into = memory.pool_of(layer).memory[memory.places[layer].number]
            # What nobody sees, even on a page that is there, is nobody's.
            seen = torch.arange(max(0, start - largest + 1) if layer == 0 else 0, start)
            its_pages = torch.tensor(table)[seen // page_size - begin]
            past = kv[layer, seen].permute(1, 2, 0, 3).to(device)
            into[:, :, its_pages, seen % page_size] = past
        items.append(Item(RoomKey(room, 1), (0,) * tokens, start, own, True, near, first))
        texts.append(kv)
    batch = lay_out(items, page_size, device)
    attend = attention(memory, batch)
    for layer, its in enumerate((rule, PLAIN)):
        query = torch.randn(len(batch.ids), heads, head_dim, generator=draw).to(dtype)
        new = [kv[layer, item.start :].flatten(1, 2) for item, kv in zip(items, texts, strict=True)]
        both = torch.cat((query, torch.cat(new)), dim=1).to(device)
        found = attend(layer, both[:, :heads], both[:, heads:], its).double().cpu()
        for span, kv in zip(batch.spans, texts, strict=True):
            rows = slice(span.first, span.last + 1)
            wanted = naive(query[rows], kv[layer], span.start, its)
            limit = (GPU_LIMIT if where == "gpu" else LIMIT)[dtype]
            assert (found[rows] - wanted).abs().max() <= limit
