from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from daemons.engine.attention import PLAIN, Attend, Rule, paged_attention
from daemons.engine.attention_cuda import kernel_window, layout_of, varlen_attention, varlen_works
from daemons.engine.batch import lay_out
from daemons.engine.device import Place
from daemons.engine.kv_cache import KvPool, make_memory, make_pool
from daemons.engine.parts import ByParts
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey

CPU = Place(torch.device("cpu"), torch.float32)
PAGE_SIZE = 4
ITEMS = [
    Item(RoomKey(1, 1), (0,) * 5, 9, (7, 2, 9, 3), samples=True),
    Item(RoomKey(2, 1), (0,), 6, (1, 5), samples=True),
    Item(RoomKey(3, 1), (0,) * 3, 0, (11, 4), samples=True),
]


def documented_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
) -> torch.Tensor:
    """What torch says that its kernel computes; masks are aligned to the ends of both."""
    assert cu_seq_k is None
    assert seqused_k is not None
    assert block_table is not None
    assert {cu_seq_q.dtype, seqused_k.dtype, block_table.dtype} == {torch.int32}
    assert enable_gqa or query.shape[1] == key.shape[2]
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    outs = []
    firsts = cu_seq_q.tolist()
    for row, (first, end, used) in enumerate(
        zip(firsts[:-1], firsts[1:], seqused_k.tolist(), strict=True)
    ):
        assert end - first <= max_q
        assert used <= max_k
        pages = block_table[row].long()
        keys, values = (kind[pages].flatten(0, 1)[:used].transpose(0, 1) for kind in (key, value))
        own = query[first:end].transpose(0, 1)
        places = torch.arange(used - (end - first), used).unsqueeze(1)  # of the queries
        others = torch.arange(used)
        seen = torch.ones(end - first, used, dtype=torch.bool)
        if window_size[0] >= 0:
            seen &= others >= places - window_size[0]
        if window_size[1] >= 0:
            seen &= others <= places + window_size[1]
        outs.append(
            torch.nn.functional.scaled_dot_product_attention(
                own[None], keys[None], values[None], seen, scale=scale, enable_gqa=enable_gqa
            )[0].transpose(0, 1)
        )
    return torch.cat(outs)


@pytest.fixture
def _documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", documented_kernel)


def test_the_documented_kernel_takes_what_the_installed_one_takes() -> None:
    from torch.nn.attention.varlen import varlen_attn

    def words(function: Any) -> dict[str, Any]:
        found = inspect.signature(function).parameters
        return {name: (one.kind, one.default) for name, one in found.items()}

    assert words(documented_kernel).items() <= words(varlen_attn).items()


def ready(items: list[Item]) -> tuple[KvPool, KvPool, Any, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(8)
    pools = [make_pool(2, 2, 12, PAGE_SIZE, 8, CPU) for _ in range(2)]
    for pool in pools:
        pool.memory.copy_(torch.randn(pool.memory.shape, generator=draw.manual_seed(9)))
    batch = lay_out(items, PAGE_SIZE, CPU.device)
    both = torch.randn(len(batch.ids), 8, 8, generator=draw)  # parts of one matrix
    return pools[0], pools[1], batch, both[:, :4], both[:, 4:]


@pytest.mark.usefixtures("_documented")
@pytest.mark.parametrize(
    "rule", [PLAIN, Rule(window=1), Rule(window=3, scale=0.3), Rule(window=9), Rule(softcap=2.0)]
)
@pytest.mark.parametrize("items", [ITEMS, ITEMS[1:2], ITEMS[:1]], ids=["mixed", "step", "chunk"])
def test_by_what_torch_documents_it_is_the_general_attention(items: list[Item], rule: Rule) -> None:
    pool, same, batch, query, kv = ready(items)
    ways: list[Attend] = [varlen_attention(pool, batch), paged_attention(same, batch)]
    for layer in (0, 1):
        found, wanted = (attend(layer, query, kv, rule) for attend in ways)
        assert torch.allclose(found, wanted, atol=1e-5)
    assert torch.equal(pool.memory, same.memory)


@pytest.mark.usefixtures("_documented")
def test_a_kernel_that_does_as_documented_is_used_and_one_that_does_not_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = make_pool(1, 2, 4, 16, 16, CPU)
    assert varlen_works(pool, heads=4)
    assert not pool.memory.any()

    def shifted(*args: Any, **kwargs: Any) -> torch.Tensor:
        return documented_kernel(*args, **{**kwargs, "window_size": (0, 0)})

    def wrong_in_steps(*args: Any, **kwargs: Any) -> torch.Tensor:
        return documented_kernel(*args, **kwargs) * (2 if kwargs["window_size"] == (-1, -1) else 1)

    for wrong in (shifted, wrong_in_steps):
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", wrong)
        assert not varlen_works(pool, heads=4)


def test_a_pool_that_the_kernel_refuses_is_told_and_left_as_it_was() -> None:
    pool = make_pool(1, 2, 4, 16, 16, CPU)
    assert not varlen_works(pool, heads=4)
    assert not pool.memory.any()


def test_windows_are_counted_as_the_kernel_counts() -> None:
    assert kernel_window(None, 5) == (-1, 0)
    assert kernel_window(None, 1) == (-1, -1)  # a step sees all there is
    assert kernel_window(1, 1) == (0, 0)
    assert kernel_window(7, 5) == (6, 0)


def test_a_layout_says_where_each_item_is() -> None:
    layout = layout_of(lay_out(ITEMS, PAGE_SIZE, CPU.device))
    assert layout.firsts.tolist() == [0, 5, 6, 9]
    assert layout.used.tolist() == [14, 7, 3]
    assert layout.table.tolist() == [[7, 2, 9, 3], [1, 5, 0, 0], [11, 0, 0, 0]]
    assert (layout.longest_query, layout.longest_context) == (5, 14)


# The table of the second begins before what a window of 5 shows.
WINDOWED = [
    Item(RoomKey(1, 1), (0,) * 5, 9, (7, 2, 9, 3), True, (0, 8, 5), 1),
    Item(RoomKey(2, 1), (0,), 9, (1, 5, 6), True, (3, 1, 6), 0),
    Item(RoomKey(3, 1), (0,) * 3, 0, (11, 4), True, (2,), 0),
]


@pytest.mark.usefixtures("_documented")
@pytest.mark.parametrize("items", [WINDOWED, WINDOWED[1:2]], ids=["mixed", "step"])
def test_layers_with_a_window_are_attended_to_in_their_own_pool(items: list[Item]) -> None:
    memories = [
        make_memory(
            [True, False],
            kv_heads=2,
            pages=12,
            window_pages=9,
            page_size=PAGE_SIZE,
            head_dim=8,
            place=CPU,
        )
        for _ in range(2)
    ]
    draw = torch.Generator().manual_seed(8)
    memories[0].memory.normal_(generator=draw)
    memories[1].memory.copy_(memories[0].memory)
    batch = lay_out(items, PAGE_SIZE, CPU.device)
    both = torch.randn(len(batch.ids), 8, 8, generator=draw)
    query, kv = both[:, :4], both[:, 4:]
    ways = [ByParts(varlen_attention), ByParts(paged_attention)]
    attends = [way(memory, batch) for way, memory in zip(ways, memories, strict=True)]
    for layer, rule in enumerate((Rule(window=5), PLAIN)):
        found, wanted = (attend(layer, query, kv, rule) for attend in attends)
        assert torch.allclose(found, wanted, atol=1e-5)
    assert torch.equal(memories[0].memory, memories[1].memory)
