"""The engine on one CUDA device beside what the device could do: reading, and multiplying.

The model has random weights (a Llama of some 0.5 billion), since only its sizes matter here. A step
must read the weights and its rooms' pages, a prompt must be multiplied through the weights; shares
are of the rates that torch reaches on this device in the same run. Times are medians of whole
calls, which end when the tokens are known.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from daemons.engine.bench import products
from daemons.engine.config import EngineConfig, Weights
from daemons.engine.engine import Engine
from daemons.engine.models import read_spec
from daemons.engine.step import Item
from daemons.engine.step import Sequence as Room
from daemons.protocol.generate import Sampling
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import write_checkpoint

SIZES: dict[str, dict[str, int]] = {
    "large": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    "tiny": {},
}
PAGE_SIZE = 256
READ_BYTES = 1 << 30
SIDE = 8192
BITS = {"auto": 16, "int8": 8, "int4": 5}
TOKEN = 5  # any
GREEDY = Sampling(temperature=0.0, max_tokens=1 << 20)


def median_s(work: Callable[[], object], samples: int, device: torch.device) -> float:
    """Return the median duration of some work and of what it left to the device."""
    found = []
    for _ in range(samples + 1):
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - begin)
    return statistics.median(found[1:])


def limits(device: torch.device, samples: int, scale: int) -> dict[str, float]:
    """Return the rates of the device; ``scale`` divides the sizes."""
    memory = torch.ones(READ_BYTES // 4 // scale, device=device)
    side = SIDE // scale
    square = torch.randn(side, side, device=device).to(torch.bfloat16)
    return {
        "read_bytes_per_s": memory.nbytes / median_s(memory.sum, samples, device),
        "flops_per_s": 2 * side**3 / median_s(lambda: square @ square, samples, device),
    }


class Bench:
    """An engine with rooms that are wanted to be long."""

    def __init__(self, directory: Path, device: str, weights: Weights, graphs: str) -> None:
        config = EngineConfig(
            device=device,  # type: ignore[arg-type]
            dtype="bf16",
            weights=weights,
            graphs=graphs,  # type: ignore[arg-type]
            page_size=PAGE_SIZE,
            kv_tokens=40 * 2304,
            kernels="torch",
            batch_rooms=32,
        )
        self.engine = Engine.load(config, directory)
        self.engine.warm_up()
        spec = read_spec(directory)
        model = spec.model
        self.weights = products(spec) + model.vocab_size * spec.hidden_size
        self.weight_bytes = self.weights * BITS[weights] / 8
        self.products = products(spec)
        self.token_bytes = 2 * model.layers * model.kv_heads * model.head_dim * 2
        self.device = self.engine._place.device

    def items(self, rooms: int, start: int, tokens: int) -> list[Item]:
        """Return a batch of equal rooms, which begin anew."""
        pages = -(-(start + tokens) // PAGE_SIZE)
        items = []
        for room in range(rooms):
            key = RoomKey(room + 1, 1)
            self.engine.begin(Room(key, GREEDY, (TOKEN,)))
            table = tuple(range(room * pages, (room + 1) * pages))
            items.append(Item(key, (TOKEN,) * tokens, start, table, samples=True))
        return items

    def step(self, rooms: int, context: int, rates: dict[str, float], samples: int) -> Any:
        """Return what a step of decode takes, and its share of reading."""
        items = self.items(rooms, context, 1)
        took_s = median_s(lambda: self.engine.forward(items), samples, self.device)
        read = self.weight_bytes + rooms * context * self.token_bytes
        share = read / rates["read_bytes_per_s"] / took_s
        return {"rooms": rooms, "context": context, "step_s": took_s, "read_share": share}

    def prompt(self, tokens: int, rates: dict[str, float], samples: int) -> Any:
        """Return what a prompt takes, and its share of multiplying."""
        items = self.items(1, 0, tokens)
        took_s = median_s(lambda: self.engine.forward(items), samples, self.device)
        share = 2 * tokens * self.products / rates["flops_per_s"] / took_s
        return {"tokens": tokens, "prompt_s": took_s, "flop_share": share}


def main(argv: Sequence[str]) -> int:
    """Measure; print a table, write JSON."""
    parser = argparse.ArgumentParser(prog="scripts/bench gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--size", default="large", choices=sorted(SIZES))
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--budget", type=float, default=0, help="seconds, then no new way; 0: all")
    parser.add_argument("--out", type=Path, default=None, help="for the JSON")
    asked = parser.parse_args(argv)
    began_s = time.monotonic()
    is_tiny = asked.size == "tiny"
    device = torch.device(asked.device)
    rates = limits(device, asked.samples, 16 if is_tiny else 1)
    print(
        f"reads {rates['read_bytes_per_s'] / 1e9:.0f} GB/s,"
        f" multiplies {rates['flops_per_s'] / 1e12:.1f} TFLOP/s in bf16"
    )
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "model"
        write_checkpoint(directory, "llama", **SIZES[asked.size])
        ways: list[tuple[Weights, str]] = [("auto", "none"), ("auto", "auto")]
        ways += [("int8", "auto"), ("int4", "auto")]
        for weights, graphs in ways:
            if asked.budget and time.monotonic() - began_s > asked.budget:
                print(f"not measured, the time was up: {weights} weights, graphs {graphs}")
                continue
            bench = Bench(directory, asked.device, weights, graphs)
            has_graphs = bench.engine._graphs is not None
            name = (
                f"{'bf16' if weights == 'auto' else weights}, {'graphs' if has_graphs else 'plain'}"
            )
            longest = 200 if is_tiny else 2048
            for rooms in (1, 8, 32):
                for context in (128, longest):
                    row = bench.step(rooms, context, rates, asked.samples)
                    rows.append({"way": name, **row})
                    print(
                        f"{name:14} decode  {rooms:3} x {context:5}  {row['step_s'] * 1e3:8.3f} ms"
                        f"  {row['read_share']:6.1%} of reading"
                    )
            for tokens in (128, 300) if is_tiny else (512, 2048):
                row = bench.prompt(tokens, rates, asked.samples)
                rows.append({"way": name, **row})
                print(
                    f"{name:14} prefill {tokens:11}  {row['prompt_s'] * 1e3:8.3f} ms"
                    f"  {row['flop_share']:6.1%} of multiplying"
                )
            del bench
    if asked.out is not None:
        document = {"torch": torch.__version__, "limits": rates, "rows": rows}
        asked.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0
