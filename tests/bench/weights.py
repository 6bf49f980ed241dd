"""What rounded weights cost or gain in the compiled kernels: SmolLM2-135M on one thread.

All kinds take turns in one run; times are medians of this process's processor time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence

import torch

from daemons.cluster.model import DEFAULT_MODEL
from daemons.cluster.models import model_directory
from daemons.engine.batch import lay_out
from daemons.engine.config import Weights
from daemons.engine.device import DTYPES, Place
from daemons.engine.kv_cache import KvMemory, make_pool, memory_of
from daemons.engine.models import Model, load_model
from daemons.engine.native.attention import native_attention
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey
from tests.support.native import team

KINDS: tuple[Weights, ...] = ("auto", "int8", "int4")
CASES = ((1, 1), (8, 1), (1, 512))  # rooms, tokens of each
PAGE_SIZE, PAGES = 16, 40  # of each room


def took_ms(model: Model, memory: KvMemory, rooms: int, tokens: int) -> float:
    """Run one forward with logits; return its milliseconds."""
    start = 0 if tokens > 1 else 64
    items = [
        Item(
            RoomKey(n + 1, 1), (5,) * tokens, start, tuple(range(n * PAGES, (n + 1) * PAGES)), True
        )
        for n in range(rooms)
    ]
    batch = lay_out(items, PAGE_SIZE, memory.memory.device)
    begin = time.process_time()
    hidden = model.hidden(batch, native_attention(team(1))(memory, batch))
    model.logits(hidden[list(batch.lasts)])
    return (time.process_time() - begin) * 1e3


@torch.inference_mode()
def main(argv: Sequence[str]) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="scripts/bench weights", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args(argv).rounds
    torch.set_num_threads(1)
    ways = []
    for name, dtype in DTYPES.items():
        place = Place(torch.device("cpu"), dtype)
        for kind in KINDS:
            model, _ = load_model(model_directory(DEFAULT_MODEL), place, team(1), kind)
            spec = model.spec
            pool = make_pool(spec.layers, spec.kv_heads, 8 * PAGES, PAGE_SIZE, spec.head_dim, place)
            ways.append((name, kind, model, memory_of(pool)))
    found: dict[tuple[str, str, int, int], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, kind, model, memory in ways:
            for case in CASES:
                found[name, kind, *case].append(took_ms(model, memory, *case))
    for rooms, tokens in CASES:
        for name, kind, *_ in ways:
            ms = statistics.median(found[name, kind, rooms, tokens])
            share = ms / statistics.median(found[name, "auto", rooms, tokens])
            print(f"{rooms} x {tokens:3}  {name} {kind:5}  {ms:8.2f} ms  {share:5.2f} of plain")
    return 0
