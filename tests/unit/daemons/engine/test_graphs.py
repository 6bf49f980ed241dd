from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from daemons.engine.attention import PLAIN, Attend, Rule, paged_attention
from daemons.engine.attention_cuda import Layout, varlen_attention
from daemons.engine.batch import lay_out
from daemons.engine.config import EngineConfig
from daemons.engine.device import Place
from daemons.engine.engine import Engine
from daemons.engine.graphs import DecodeGraphs, Run, is_recordable, recorded, sizes_up_to
from daemons.engine.kv_cache import KvMemory, KvPool, make_memory, make_pool, memory_of
from daemons.engine.models import load_model
from daemons.engine.parts import ByParts
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import checkpoint
from tests.support.engines import Talk, begin, talk_on

PLACE = Place(torch.device("cpu"), torch.float32)
PAGE_SIZE, LONGEST = 16, 64
MODEL, _ = load_model(checkpoint("mistral"), PLACE)


def by_layout(pool: KvPool, layout: Layout) -> Attend:
    """Attention of single tokens, read out of a layout's tensors when it is called."""

    def attend(
        layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
    ) -> torch.Tensor:
        pool.write(layer, layout.slots, kv)
        outs = []
        for row, used in enumerate(layout.used.tolist()):
            assert layout.firsts[row] == row
            assert 1 <= used <= layout.longest_context
            pages = layout.table[row, : -(-used // pool.page_size)]
            keys, values = pool.memory[layer][:, :, pages.long()].flatten(2, 3)[:, :, :used]
            low = 0 if rule.window is None else max(0, used - rule.window)
            own = query[row].view(1, pool.kv_heads, -1, query.shape[-1])
            out = torch.nn.functional.scaled_dot_product_attention(
                own, keys[None, :, low:], values[None, :, low:], scale=rule.scale
            )
            outs.append(out.flatten())
        return torch.stack(outs)

    return attend


def again(run: Run) -> Run:
    """A recording that is only run again, but as a graph is: with its own tensors."""
    run()
    return run


def memory() -> KvMemory:
    spec = MODEL.spec
    return memory_of(make_pool(spec.layers, spec.kv_heads, 24, PAGE_SIZE, spec.head_dim, PLACE))


def graphs_of(kept: KvMemory, sizes: Sequence[int]) -> DecodeGraphs:
    return DecodeGraphs(MODEL, kept, sizes, LONGEST, again, by_layout)


def step(room: int, start: int, *pages: int) -> Item:
    return Item(RoomKey(room, 1), (7 * room + start,), start, pages, samples=True)


def near(
    room: int, start: int, pages: tuple[int, ...], window: tuple[int, ...], first: int
) -> Item:
    return Item(RoomKey(room, 1), (7 * room + start,), start, pages, True, window, first)


STEPS = [
    step(1, 17, 3, 9),
    step(2, 0, 20),
    step(3, 47, 4, 1, 8, 11),
    step(4, 15, 12),
    step(5, 16, 5, 6),
]


@torch.inference_mode()
@pytest.mark.parametrize("rooms", [1, 2, 3, 5])
def test_a_replayed_step_is_the_plain_one_and_writes_nothing_else(rooms: int) -> None:
    kept, same = memory(), memory()
    graphs = graphs_of(kept, (1, 2, 4, 8))
    kept.memory.normal_(generator=torch.Generator().manual_seed(1))
    same.memory.copy_(kept.memory)
    batch = lay_out(STEPS[:rooms], PAGE_SIZE, PLACE.device)
    found = graphs.hidden(batch)
    wanted = MODEL.hidden(batch, paged_attention(same.full, batch))
    assert found is not None
    assert torch.allclose(found, wanted, atol=1e-5)
    assert torch.allclose(kept.memory, same.memory, atol=1e-5)
    unchanged = set(range(24)) - {page for item in STEPS[:rooms] for page in item.pages}
    before, after = (one.full.memory[:, :, :, list(unchanged)] for one in (same, kept))
    assert torch.equal(before, after)


@torch.inference_mode()
def test_nothing_of_a_larger_batch_is_left_in_a_smaller_one() -> None:
    kept, fresh = memory(), memory()
    graphs, others = graphs_of(kept, (4,)), graphs_of(fresh, (4,))
    graphs.hidden(lay_out(STEPS[:4], PAGE_SIZE, PLACE.device))
    fresh.memory.copy_(kept.memory)
    alone = lay_out([step(6, 3, 22)], PAGE_SIZE, PLACE.device)
    found, wanted = graphs.hidden(alone), others.hidden(alone)
    assert found is not None
    assert wanted is not None
    assert torch.equal(found, wanted)
    assert torch.equal(kept.memory, fresh.memory)


def test_chunks_and_large_batches_are_not_for_graphs() -> None:
    graphs = graphs_of(memory(), (1, 2))
    chunk = Item(RoomKey(9, 1), (1, 2), 0, (0,), samples=True)
    assert graphs.hidden(lay_out([STEPS[0], chunk], PAGE_SIZE, PLACE.device)) is None
    assert graphs.hidden(lay_out(STEPS[:3], PAGE_SIZE, PLACE.device)) is None


def test_sizes_are_few_and_end_with_the_largest() -> None:
    assert sizes_up_to(1) == (1,)
    assert sizes_up_to(3) == (1, 2, 3)
    assert sizes_up_to(8) == (1, 2, 4, 8)
    assert sizes_up_to(20) == (1, 2, 4, 8, 16, 20)
    assert len(sizes_up_to(64)) == 11


def test_the_largest_is_recorded_first_so_that_the_others_find_its_memory() -> None:
    made = []

    def note(run: Run) -> Run:
        made.append(len(run()))
        return run

    DecodeGraphs(MODEL, memory(), (1, 2, 4), LONGEST, note, by_layout)
    assert made == [4, 2, 1]


def test_what_waits_for_a_choice_or_for_another_attention_is_not_recorded() -> None:
    assert is_recordable(MODEL, ByParts(varlen_attention))
    assert not is_recordable(MODEL, ByParts(paged_attention))
    for kind in ("qwen3-moe", "gemma2"):
        model, _ = load_model(checkpoint(kind), PLACE)
        assert not is_recordable(model, ByParts(varlen_attention))
    assert recorded(MODEL, memory(), ByParts(paged_attention), 8, LONGEST) is None


def test_an_engine_replays_its_steps_and_runs_the_rest() -> None:
    config = EngineConfig(device="cpu", kernels="torch", page_size=PAGE_SIZE, kv_tokens=512)
    plain, other = (Engine.load(config, checkpoint("mistral")) for _ in range(2))
    plain.warm_up()
    other.warm_up()
    assert plain._graphs is None
    replayed = []

    def counted(run: Run) -> Run:
        def replay() -> torch.Tensor:
            with torch.inference_mode():
                left = run()
            replayed.append(len(left))
            return left

        return replay

    parts = other._model, other._memory, (1, 2, 4), 512
    other._graphs = DecodeGraphs(*parts, counted, by_layout)
    texts = []
    for engine in (plain, other):
        talks = [
            Talk(RoomKey(1 + n, 1), tuple(range(20, 40 + n)), tuple(range(5 * n, 5 * n + 5)))
            for n in range(3)
        ]
        begin(engine, talks)
        talk_on(engine, talks, 9, chunk=16)
        texts.append([talk.tokens for talk in talks])
    assert texts[0] == texts[1]
    assert set(replayed) == {4}
    assert len(replayed) == 8


GEMMA, _ = load_model(checkpoint("gemma3"), PLACE)  # layers with a window, and one without
# The table of the third begins before what is needed; 20 tokens are on two pages, or on three.
NEAR = [
    near(1, 17, (3, 9), (1, 5), 0),
    near(2, 0, (20,), (7,), 0),
    near(3, 47, (4, 1, 8, 11), (30, 2, 9), 1),
    near(4, 60, (12, 13, 14, 15), (4, 3), 2),
    near(5, 63, (16, 17, 18, 19), (6, 8, 10), 1),
]


def both_pools() -> KvMemory:
    spec = GEMMA.spec
    return make_memory(
        [window is not None for window in spec.windows],
        kv_heads=spec.kv_heads,
        pages=24,
        window_pages=40,
        page_size=PAGE_SIZE,
        head_dim=spec.head_dim,
        place=PLACE,
    )


@torch.inference_mode()
@pytest.mark.parametrize("rooms", [1, 3, 5])
def test_a_replayed_step_finds_window_pages_as_the_plain_one_does(rooms: int) -> None:
    kept, same = both_pools(), both_pools()
    graphs = DecodeGraphs(GEMMA, kept, (1, 2, 4, 8), LONGEST, again, by_layout)
    kept.memory.normal_(generator=torch.Generator().manual_seed(1))
    same.memory.copy_(kept.memory)
    for items in (NEAR[:rooms], NEAR[-rooms:]):
        batch = lay_out(items, PAGE_SIZE, PLACE.device)
        found = graphs.hidden(batch)
        wanted = GEMMA.hidden(batch, ByParts(paged_attention)(same, batch))
        assert found is not None
        assert torch.allclose(found, wanted, atol=1e-5)
        assert torch.allclose(kept.memory, same.memory, atol=1e-5)


def test_a_graph_reads_no_more_pages_than_a_window_shows() -> None:
    widths = set()

    def noted(pool: KvPool, layout: Layout) -> Attend:
        widths.add((pool.pages, layout.table.shape[1], layout.longest_context))
        return by_layout(pool, layout)

    DecodeGraphs(GEMMA, both_pools(), (1,), LONGEST, again, noted)
    assert widths == {(24, 4, 64), (40, 3, 48)}
