"""Attention over memory in two pools, made of attention over one.

Layers with a window go to their own pool and page tables; each layer is counted there by its place
in the pool. Where there is only one pool nothing is added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from daemons.engine.attention import PLAIN, Attend, PoolAttention, Rule
from daemons.engine.batch import Batch
from daemons.engine.kv_cache import KvMemory
from daemons.engine.progress import Progress


@dataclass(frozen=True, slots=True)
class ByParts:
    """Attention over all layers, by one over the layers of a pool."""

    attention: PoolAttention

    def __call__(self, memory: KvMemory, batch: Batch) -> Attend:
        """Return attention for one forward."""
        if not memory.window.layers:
            return self.attention(memory.full, batch)
        return by_layer(
            memory,
            self.attention(memory.full, replace(batch, progress=None)),
            self.attention(memory.window, batch.windowed),
            batch.progress if memory.memory.device.type == "cpu" else None,  # else under way
        )


def by_layer(
    memory: KvMemory, full: Attend, window: Attend, progress: Progress | None = None
) -> Attend:
    """Return attention that sends each layer to its pool's; ``progress`` is told of each."""

    def attend(
        layer: int, query: torch.Tensor, kv: torch.Tensor, rule: Rule = PLAIN
    ) -> torch.Tensor:
        place = memory.places[layer]
        out = (window if place.windowed else full)(place.number, query, kv, rule)
        if progress is not None:
            progress.reach(layer)
        return out

    return attend
