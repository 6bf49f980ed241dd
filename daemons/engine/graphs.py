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
from daemons.engine.batch import Batch
from daemons.engine.kernels import Attention
from daemons.engine.kv_cache import KvPool
from daemons.engine.models import Model
from daemons.engine.models.decoder import Decoder

Run = Callable[[], torch.Tensor]
_WARM_RUNS = 2  # before a recording: libraries choose and reserve on their first runs
_STEP = 8  # sizes beyond this are its multiples


class Stepping(Protocol):
    """What a graph needs of a model."""

    def hidden(self, batch: Batch, attend: Attend) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class _Graph:
    """One size.

    Attributes:
        numbers: int64 ``[4, rooms]``: token, position, slot, tokens of the context.
        table: int32 ``[rooms, pages]``.
        rows: what ``table`` is filled from, in host memory.
        replay: runs the step, returns ``[rooms, hidden]``.
    """

    numbers: torch.Tensor
    table: torch.Tensor
    rows: np.ndarray
    replay: Run


class DecodeGraphs:
    """The graphs of a model over a pool."""

    def __init__(
        self,
        model: Stepping,
        pool: KvPool,
        sizes: Sequence[int],
        longest: int,
        record: Callable[[Run], Run],
        attend: Callable[[KvPool, Layout], Attend] = attend_over,
    ) -> None:
        """Record all sizes, the largest first; page 0 is written.

        Args:
            model: whose steps.
            pool: which stays where it is.
            sizes: rooms of a batch, ascending.
            longest: tokens of the longest context.
            record: makes a run that can be replayed.
            attend: attention over what is in a layout when it is called.
        """
        self._pool = pool
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
        page_size = self._pool.page_size
        columns = []
        for row in range(size):
            item = batch.items[min(row, rooms - 1)]
            pages, start = item.pages, item.start
            slot = pages[start // page_size] * page_size + start % page_size
            columns.append((item.tokens[0], start, slot, start + 1))
            needed = start // page_size + 1
            known = batch.tables[min(row, rooms - 1)].numbers
            graph.rows[row, :needed] = np.frombuffer(known, dtype=np.int32, count=needed)
        graph.numbers.copy_(torch.tensor(columns, dtype=torch.int64).T)
        graph.table.copy_(torch.from_numpy(graph.rows))
        return graph.replay()[:rooms]

    def _recorded(
        self,
        model: Stepping,
        size: int,
        record: Callable[[Run], Run],
        attend: Callable[[KvPool, Layout], Attend],
    ) -> _Graph:
        device, page_size = self._pool.memory.device, self._pool.page_size
        numbers = torch.zeros(4, size, dtype=torch.int64, device=device)
        numbers[3] = 1
        width = -(-self._longest // page_size)
        table = torch.zeros(size, width, dtype=torch.int32, device=device)
        firsts = torch.arange(size + 1, dtype=torch.int32, device=device)

        def run() -> torch.Tensor:
            batch = Batch((), (), page_size, device)
            # Its forms, which are else made of items, are this graph's inputs.
            vars(batch).update(ids=numbers[0], positions=numbers[1], slots=numbers[2])
            used = numbers[3].int()
            layout = Layout(numbers[2], firsts, used, table, 1, self._longest)
            return model.hidden(batch, attend(self._pool, layout))

        rows = np.zeros((size, width), dtype=np.int32)
        return _Graph(numbers, table, rows, record(run))


@torch.inference_mode()
def recorded(
    model: Model, pool: KvPool, attention: Attention, rooms: int, longest: int
) -> DecodeGraphs | None:
    """Return the graphs for batches up to ``rooms``; None where steps cannot be recorded.

    Those of mixtures of experts cannot, whose choice the processor waits for, nor those with capped
    scores, nor what is not attended to by the one kernel. Page 0 is written.
    """
    if not is_recordable(model, attention):
        return None
    record = cuda_recorder(pool.memory.device)
    try:
        return DecodeGraphs(model, pool, sizes_up_to(rooms), longest, record)
    except RuntimeError:  # no memory, or an operation that cannot be recorded: steps run as before
        torch.cuda.synchronize(pool.memory.device)
        return None


def is_recordable(model: Model, attention: Attention) -> bool:
    """Say whether a model's steps are the same operations whatever their numbers are."""
    return (
        attention is varlen_attention
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
