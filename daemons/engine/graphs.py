"""Decode steps on CUDA as graphs: recorded once for a few sizes, replayed with other numbers.

- A graph has the addresses of its inputs, the pool and the weights in it, so all of these stay
  where they are; a step's numbers are copied into its inputs before it is replayed.
- A batch is filled up to the next size with its last room again: those rows compute and write what
  that room's own row does, so no page is needed for them and nothing else is touched.
- What a graph leaves lies in its own memory until the next one is replayed.
- Only batches of single tokens are replayed, only up to the largest size; others run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from daemons.engine.attention import Attend
from daemons.engine.attention_cuda import Layout, attend_over, varlen_attention
from daemons.engine.batch import Batch, Table
from daemons.engine.kernels import Attention
from daemons.engine.kv_cache import KvMemory, KvPool
from daemons.engine.models import Model
from daemons.engine.models.decoder import Decoder
from daemons.engine.models.spec import Spec
from daemons.engine.parts import ByParts, by_layer
from daemons.kv.window import first_needed_page, window_pages_needed

Run = Callable[[], torch.Tensor]
_WARM_RUNS = 2  # before a recording: libraries choose and reserve on their first runs
_STEP = 8  # sizes beyond this are its multiples


class Stepping(Protocol):
    """What a graph needs of a model."""

    @property
    def spec(self) -> Spec: ...
    def hidden(self, batch: Batch, attend: Attend) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class _Pages:
    """The page tables of one pool for a size.

    Attributes:
        table: int32 ``[rooms, pages]``.
        rows: what it is filled from, in host memory.
    """

    table: torch.Tensor
    rows: np.ndarray

    def put(
        self, row: int, table: Table, skipped: int, start: int, page_size: int
    ) -> tuple[int, int]:
        """Give a row the table behind the pages that are skipped; return its slot and context.

        ``start`` is counted from there.
        """
        pages = start // page_size + 1
        known = np.frombuffer(table.numbers, dtype=np.int32, count=pages, offset=4 * skipped)
        self.rows[row, :pages] = known
        return int(known[-1]) * page_size + start % page_size, start + 1


@dataclass(frozen=True, slots=True)
class _Graph:
    """One size.

    Attributes:
        numbers: int64 ``[4 or 6, rooms]``: token, position, then slot and tokens of the context in
            the full pool, and the same in the window pool where there is one.
        full: page tables of the full pool.
        window: of the window pool; None where there is none.
        replay: runs the step, returns ``[rooms, hidden]``.
    """

    numbers: torch.Tensor
    full: _Pages
    window: _Pages | None
    replay: Run


class DecodeGraphs:
    """The graphs of a model over its memory."""

    def __init__(
        self,
        model: Stepping,
        memory: KvMemory,
        sizes: Sequence[int],
        longest: int,
        record: Callable[[Run], Run],
        attend: Callable[[KvPool, Layout], Attend] = attend_over,
    ) -> None:
        """Record all sizes, the largest first; page 0 of each pool is written.

        Args:
            model: whose steps.
            memory: which stays where it is.
            sizes: rooms of a batch, ascending.
            longest: tokens of the longest context.
            record: makes a run that can be replayed.
            attend: attention over what is in a layout when it is called.
        """
        self._memory = memory
        self._page_size = memory.some_pool.page_size
        self._window = max((rule.window or 0 for rule in model.spec.rules), default=0)
        self._longest = longest
        self._graphs: dict[int, _Graph] = {}
        for size in reversed(sizes):
            self._graphs[size] = self._recorded(model, size, record, attend)
        self._sizes = tuple(sizes)

    def hidden(self, batch: Batch) -> torch.Tensor | None:
        """Return what the last layer leaves, ``[rooms, hidden]``; None: no graph is for this batch.

        It is overwritten by the next call.
        """
        rooms = len(batch.items)
        size = next((size for size in self._sizes if size >= rooms), None)
        if size is None or any(len(item.tokens) != 1 for item in batch.items):
            return None
        graph = self._graphs[size]
        page_size = self._page_size
        columns = []
        for row in range(size):
            place = min(row, rooms - 1)
            item = batch.items[place]
            start = item.start
            column = [item.tokens[0], start]
            column += graph.full.put(row, batch.tables[place], 0, start, page_size)
            if graph.window is not None:
                first = first_needed_page(start, self._window, page_size)
                table, skipped = batch.window_tables[place], first - item.window_first
                inside = start - first * page_size
                column += graph.window.put(row, table, skipped, inside, page_size)
            columns.append(column)
        graph.numbers.copy_(torch.tensor(columns, dtype=torch.int64).T)
        for pages in filter(None, (graph.full, graph.window)):
            pages.table.copy_(torch.from_numpy(pages.rows))
        return graph.replay()[:rooms]

    def _recorded(
        self,
        model: Stepping,
        size: int,
        record: Callable[[Run], Run],
        attend: Callable[[KvPool, Layout], Attend],
    ) -> _Graph:
        memory, page_size = self._memory, self._page_size
        device = memory.memory.device
        numbers = torch.zeros(
            6 if memory.window.layers else 4, size, dtype=torch.int64, device=device
        )
        numbers[3::2] = 1
        full = _pages(size, -(-self._longest // page_size), device)
        window = None
        if memory.window.layers:
            window = _pages(size, window_pages_needed(self._window, 1, page_size), device)
        firsts = torch.arange(size + 1, dtype=torch.int32, device=device)

        def attend_in(pool: KvPool, at: int, pages: _Pages) -> Attend:
            longest = pages.table.shape[1] * page_size
            layout = Layout(numbers[at], firsts, numbers[at + 1].int(), pages.table, 1, longest)
            return attend(pool, layout)

        def run() -> torch.Tensor:
            batch = Batch((), (), page_size, device)
            # Its forms, which are else made of items, are this graph's inputs.
            vars(batch).update(ids=numbers[0], positions=numbers[1])
            over = attend_in(memory.full, 2, full)
            if window is not None:
                over = by_layer(memory, over, attend_in(memory.window, 4, window))
            return model.hidden(batch, over)

        return _Graph(numbers, full, window, record(run))


def _pages(rooms: int, pages: int, device: torch.device) -> _Pages:
    table = torch.zeros(rooms, pages, dtype=torch.int32, device=device)
    return _Pages(table, np.zeros((rooms, pages), dtype=np.int32))


@torch.inference_mode()
def recorded(
    model: Model, memory: KvMemory, attention: Attention, rooms: int, longest: int
) -> DecodeGraphs | None:
    """Return the graphs for batches up to ``rooms``; None where steps cannot be recorded.

    Those of mixtures of experts cannot, whose choice the processor waits for, nor those with capped
    scores, nor what is not attended to by the one kernel. Page 0 of each pool is written.
    """
    if not is_recordable(model, attention):
        return None
    device = memory.memory.device
    record = cuda_recorder(device)
    try:
        return DecodeGraphs(model, memory, sizes_up_to(rooms), longest, record)
    except RuntimeError:  # no memory, or an operation that cannot be recorded: steps run as before
        torch.cuda.synchronize(device)
        return None


def is_recordable(model: Model, attention: Attention) -> bool:
    """Say whether a model's steps are the same operations whatever their numbers are."""
    return (
        attention == ByParts(varlen_attention)
        and isinstance(model, Decoder)
        and model.decoder_spec.experts is None
        and all(rule.softcap is None for rule in model.spec.rules)
    )


def sizes_up_to(rooms: int) -> tuple[int, ...]:
    """Return the sizes of batches that are recorded: few small ones, then every eighth."""
    small = [size for size in (1, 2, 4) if size < rooms]
    return tuple(sorted({*small, *range(_STEP, rooms, _STEP), rooms}))


def cuda_recorder(device: torch.device) -> Callable[[Run], Run]:
    """Return what records on a CUDA device; recordings share the memory for what lies between."""
    memory = torch.cuda.graph_pool_handle()

    def record(run: Run) -> Run:
        own, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(own)
        with torch.cuda.stream(aside):
            for _ in range(_WARM_RUNS):
                run()
        own.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            left = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return left

        return replay

    return record
