"""``python -m daemons.engine.bench``: how fast this engine is here, beside what the host could do.

A step of decode must read the weights and the pages of its rooms; a prompt must be multiplied
through the weights. The shares compare what was measured with reading so many bytes, or computing
so many products, at the best rates of this machine in the same run (``limits``). Times are medians.
The last part is what a simulator needs: times as sums of a few rates.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from daemons.cluster.errors import OperatorError
from daemons.cluster.models import model_directory
from daemons.engine.attention import Attend
from daemons.engine.batch import Batch
from daemons.engine.config import EngineConfig, Weights
from daemons.engine.device import set_threads
from daemons.engine.engine import Engine, Likeliest, Scores
from daemons.engine.kernels import native_team
from daemons.engine.limits import limits, median_s
from daemons.engine.models import Model, read_spec
from daemons.engine.models.spec import DecoderSpec, Spec
from daemons.engine.quant import GROUP
from daemons.engine.step import Item
from daemons.engine.step import Sequence as Room
from daemons.kv.window import first_needed_page
from daemons.protocol.generate import Sampling
from daemons.protocol.ids import RoomKey

SCHEMA_VERSION = 1
PAGE_SIZE = 16
STEPS = 8  # of decode, for one sample
TOKEN = 5  # any
_Made = TypeVar("_Made")
_GREEDY = Sampling(temperature=0.0, max_tokens=1 << 20)


def products(spec: DecoderSpec) -> int:
    """Return how many weights a token is multiplied with that asks for no logits."""
    model, hidden = spec.model, spec.hidden_size
    attention = 2 * hidden * (model.heads + model.kv_heads) * model.head_dim
    dense = 3 * hidden * spec.intermediate_size
    if spec.experts is None:
        return model.layers * (attention + dense)
    experts, sparse = spec.experts, len(spec.experts.layers)
    chosen = hidden * (experts.experts + 3 * experts.chosen * experts.intermediate_size)
    return model.layers * attention + (model.layers - sparse) * dense + sparse * chosen


def bits_of(weights: Weights, item_bytes: int) -> tuple[float, float]:
    """Return the bits of a weight in a layer and of one in the head, with what scales them."""
    if weights == "auto":
        return item_bytes * 8, item_bytes * 8
    return {"int8": 8.0, "int4": 4 + 2 * item_bytes * 8 / GROUP}[weights], 8.0


def seen(windows: Sequence[int | None], context: int) -> int:
    """Return how many keys the last token of a context meets, over layers with these windows."""
    return sum(context if window is None else min(context, window) for window in windows)


def seen_on_average(windows: Sequence[int | None], tokens: int) -> float:
    """Return how many keys a token of a prompt meets, over layers with these windows."""
    whole = 0.0
    for window in windows:
        near = tokens if window is None else min(tokens, window)
        whole += near - near * near / (2 * tokens)  # until it is full it grows by one a token
    return whole


@dataclass(slots=True)
class Spent:
    """In place of an engine's model: adds up the time that is spent in it."""

    model: Model
    likeliest: Likeliest | None
    scores: Scores | None
    forward_s: float = 0.0

    @property
    def spec(self) -> Spec:
        """The model's."""
        return self.model.spec

    def hidden(self, batch: Batch, attend: Attend) -> torch.Tensor:
        """Time the model's own."""
        return self._timed(lambda: self.model.hidden(batch, attend))

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Time the model's own."""
        return self._timed(lambda: self.model.logits(rows))

    def chosen(self, attend: Attend, rows: array[int]) -> array[int]:
        """Time the model's own way to its likeliest tokens."""
        likeliest = self.likeliest
        assert likeliest is not None
        return self._timed(lambda: likeliest(attend, rows))

    def scored(self, attend: Attend, rows: array[int]) -> torch.Tensor:
        """Time the model's own way to some logits."""
        scores = self.scores
        assert scores is not None
        return self._timed(lambda: scores(attend, rows))

    def _timed(self, work: Callable[[], _Made]) -> _Made:
        begin = time.perf_counter()
        done = work()
        self.forward_s += time.perf_counter() - begin
        return done


@contextlib.contextmanager
def timed_model(engine: Engine) -> Iterator[Spent]:
    """Have what an engine spends in its model added up for a while."""
    model, likeliest, scores = engine._model, engine._likeliest, engine._scores
    spent = Spent(model, likeliest, scores)
    engine._model = spent
    if likeliest is not None:
        engine._likeliest = spent.chosen
    if scores is not None:
        engine._scores = spent.scored
    try:
        yield spent
    finally:
        engine._model, engine._likeliest, engine._scores = model, likeliest, scores


class Bench:
    """An engine with rooms at will."""

    def __init__(self, config: EngineConfig, directory: Path) -> None:
        """Load the model and count its weights."""
        self.engine = Engine.load(config, directory, window_rooms=config.batch_rooms)
        self.config = config
        spec = read_spec(directory)
        self.products = products(spec)
        self.read = self.products + spec.model.vocab_size * spec.hidden_size
        self.item_bytes = self.engine._place.dtype.itemsize
        inner, head = bits_of(config.weights, self.item_bytes)
        vocabulary = self.read - self.products
        self.weight_bytes = int(self.products * inner + vocabulary * head) // 8

    def limits(self, samples: int) -> dict[str, float]:
        """Return the rates of this machine by as many threads as the engine has."""
        place, threads = self.engine._place, torch.get_num_threads()
        team = native_team(self.config, place, ())
        set_threads(self.config.threads)
        try:
            return limits(place.device, place.dtype, self.weight_bytes, team, samples)
        finally:
            set_threads(threads)

    @property
    def kv_bytes(self) -> int:
        """Of one token in one layer."""
        spec = self.engine._model.spec
        return 2 * spec.kv_heads * spec.head_dim * self.item_bytes

    def items(self, rooms: int, start: int, tokens: int) -> list[Item]:
        """Return the same part of some rooms; the pages hold whatever they hold."""
        each = -(-(start + tokens + 1) // PAGE_SIZE)
        first = near = 0  # window pages: of the text, and of a room
        if self.engine.window_pages:
            first = first_needed_page(start, self.engine.windows.largest, PAGE_SIZE)
            near = -(-(start + tokens) // PAGE_SIZE) - first
        for room in range(rooms):
            self.engine.begin(Room(RoomKey(room + 1, 1), _GREEDY, (TOKEN,) * (start + tokens)))
        return [
            Item(
                RoomKey(room + 1, 1),
                (TOKEN,) * tokens,
                start,
                tuple(range(room * each, (room + 1) * each)),
                samples=True,
                window=tuple(range(room * near, (room + 1) * near)),
                window_first=first,
            )
            for room in range(rooms)
        ]

    def decode(self, rooms: int, context: int, rates: dict[str, float], samples: int) -> Any:
        """Return how long a step of some rooms takes, and its share of what reading would."""
        items = self.items(rooms, context, 1)
        step_s = median_s(lambda: self.engine.forward(items), max(samples, samples * 8 // rooms))
        spec = self.engine._model.spec
        met = seen(spec.windows, context)
        read_bytes = self.weight_bytes + rooms * met * self.kv_bytes
        flops = 2 * rooms * (self.read + 2 * met * spec.heads * spec.head_dim)
        reading_s = read_bytes / rates["read_bytes_per_s"]
        computing_s = flops / rates["flops_per_s"]
        return {
            "rooms": rooms,
            "context": context,
            "step_s": step_s,
            "tokens_per_s": rooms / step_s,
            "read_share": reading_s / step_s,
            "flop_share": computing_s / step_s,
        }

    def prefill(self, tokens: int, rates: dict[str, float], samples: int) -> Any:
        """Return how long a prompt takes, and its share of what multiplying would."""
        chunks = [
            self.items(1, start, min(self.config.chunk_tokens, tokens - start))
            for start in range(0, tokens, self.config.chunk_tokens)
        ]

        def run() -> None:
            for items in chunks:
                self.engine.forward(items)

        took_s = median_s(run, max(2, samples // 2))
        spec = self.engine._model.spec
        # Scores and values are a product each.
        attention = 2 * spec.heads * spec.head_dim * seen_on_average(spec.windows, tokens)
        flops = 2 * tokens * (self.products + attention)
        return {
            "tokens": tokens,
            "prompt_s": took_s,
            "tokens_per_s": tokens / took_s,
            "flop_share": flops / rates["flops_per_s"] / took_s,
        }

    def overhead(self, rooms: int, context: int, samples: int) -> Any:
        """Return what a step takes beside the model: checks, layout, sampling."""
        items = self.items(rooms, context, 1)
        whole, inner = [], []
        with timed_model(self.engine) as spent:
            for _ in range(samples):
                before, begin = spent.forward_s, time.perf_counter()
                self.engine.forward(items)
                whole.append(time.perf_counter() - begin)
                inner.append(spent.forward_s - before)
        forward_s = statistics.median(inner)
        added_s = statistics.median(w - i for w, i in zip(whole, inner, strict=True))
        return {
            "rooms": rooms,
            "forward_s": forward_s,
            "added_s": added_s,
            "share": added_s / forward_s,
        }


def calibration(decode: Sequence[Any], prefill: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Return least-squares rates: a step's time and a prompt's time as sums of a few terms."""
    if not decode or not prefill:
        return {}
    steps = [[1.0, row["rooms"], row["rooms"] * row["context"]] for row in decode]
    prompts = [[row["tokens"], row["tokens"] ** 2] for row in prefill]
    return {
        "decode_step_s": dict(
            zip(
                ("base", "per_room", "per_room_and_context_token"),
                _fit(steps, [row["step_s"] for row in decode]),
                strict=True,
            )
        ),
        "prefill_s": dict(
            zip(
                ("per_token", "per_token_squared"),
                _fit(prompts, [row["prompt_s"] for row in prefill]),
                strict=True,
            )
        ),
    }


def _fit(rows: list[list[float]], times: list[float]) -> list[float]:
    # Relative errors count, so that a long step does not drown the short ones.
    matrix = torch.tensor(rows, dtype=torch.float64)
    wanted = torch.tensor(times, dtype=torch.float64)
    found: list[float] = (
        torch.linalg.lstsq(
            matrix / wanted.unsqueeze(1), torch.ones_like(wanted).unsqueeze(1), driver="gelsd"
        )
        .solution[:, 0]
        .tolist()
    )
    return found


def measure(
    config: EngineConfig,
    directory: Path,
    *,
    rooms: Sequence[int],
    contexts: Sequence[int],
    prompts: Sequence[int],
    samples: int,
) -> dict[str, Any]:
    """Return the whole document."""
    set_threads(config.threads)
    bench = Bench(config, directory)
    rates = bench.limits(samples)
    longest = bench.engine.max_model_len - 2
    decode = [
        bench.decode(count, context, rates, samples)
        for count in rooms
        for context in contexts
        if context <= longest and count * (context + 2 * PAGE_SIZE) <= config.kv_tokens
    ]
    prefill = [bench.prefill(tokens, rates, samples) for tokens in prompts if tokens <= longest]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "bench-engine",
        "model": directory.name,
        "machine": {"processor": _processor(), "cores": len(os.sched_getaffinity(0))},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "settings": {
            "device": bench.engine._place.device.type,
            "dtype": bench.engine._place.dtype_name,
            "weights": config.weights,
            "threads": config.threads,
            "kernels": type(bench.engine._model).__name__,
            "samples": samples,
        },
        "limits": rates,
        "decode": decode,
        "prefill": prefill,
        "overhead": [bench.overhead(count, contexts[0], samples * 4) for count in rooms],
        "calibration": calibration(decode, prefill),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].partition(":")[2].strip() if names else platform.machine()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write JSON to standard output."""
    parser = argparse.ArgumentParser(prog="python -m daemons.engine.bench", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--weights", default="auto", choices=["auto", "int8", "int4"])
    parser.add_argument("--kernels", default="auto", choices=["auto", "native", "torch"])
    parser.add_argument("--threads", type=int, default=0, help="0: one for each core")
    parser.add_argument("--rooms", type=_numbers, default=[1, 8, 32])
    parser.add_argument("--contexts", type=_numbers, default=[128, 2048])
    parser.add_argument("--prompts", type=_numbers, default=[512, 2048])
    parser.add_argument("--samples", type=int, default=5)
    asked = parser.parse_args(arguments)
    tokens = max(asked.rooms) * (max(asked.contexts) + 2 * PAGE_SIZE)
    config = EngineConfig(
        device=asked.device,
        dtype=asked.dtype,
        weights=asked.weights,
        kernels=asked.kernels,
        threads=asked.threads or len(os.sched_getaffinity(0)),
        page_size=PAGE_SIZE,
        batch_rooms=max(asked.rooms),
        kv_tokens=max(tokens, max(asked.prompts) + 2 * PAGE_SIZE),
    )
    try:
        document = measure(
            config,
            model_directory(asked.model),
            rooms=asked.rooms,
            contexts=asked.contexts,
            prompts=asked.prompts,
            samples=asked.samples,
        )
    except OperatorError as error:
        print(f"{error.what}\nhint: {error.hint}", file=sys.stderr)
        return 1
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
