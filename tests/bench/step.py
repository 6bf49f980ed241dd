"""All that a decode step costs beside the forward, in one line: core, wait, engine.

Decode's core, its lane and the engine with the demo model run as in a rank, without its sockets.

- core: processor time of the core for one step, and for saying its tokens; with a step ahead it
  falls into the forward before.
- wait: from the end of one call of the engine to the beginning of the next, by the clock.
- engine: what the engine takes beside the kernels (checks, layout, choosing tokens), by the clock.
- forward: time in the kernels, medians of the same steps, and the shortest: on a machine that does
  other work too, that is the one that shares are of.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from daemons.cluster.models import model_directory
from daemons.decode.config import DecodeConfig
from daemons.decode.scheduler import Scheduler
from daemons.engine.bench import Spent, timed_model
from daemons.engine.config import EngineConfig
from daemons.engine.engine import Engine
from daemons.engine.step import Begin, End, Item, Keep, Kept, Prepare, Result, Run
from daemons.engine.step import Sequence as Room
from daemons.protocol.generate import Distribution, Grammar, GrammarKind, Outputs, Sampling, Submit
from daemons.protocol.ids import RoomKey
from daemons.rank.forward_lane import ForwardLane
from daemons.runtime.commands import Tell
from daemons.runtime.events import Submitted
from daemons.runtime.reactor import Wake
from tests.support.cores import D, buffers

PAGE_SIZE = 16
PROMPT = 128  # tokens
WARM_STEPS = 5
PARTS = ("core", "wait", "engine")
SAMPLED = Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=1, ignore_eos=True)
KINDS = {  # what the rooms ask for
    "greedy": Sampling(temperature=0.0, ignore_eos=True),
    "sampled": SAMPLED,
    "nucleus": replace(SAMPLED, top_k=-1),
    "all": replace(SAMPLED, top_k=-1, top_p=1.0),
    "min_p": replace(SAMPLED, top_k=-1, top_p=1.0, min_p=0.05),
    "penalties": replace(
        SAMPLED,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.1,
        logit_bias=((11, -5.0), (12, 1.0)),
        min_tokens=1 << 20,
        stop_token_ids=(2,),
    ),
    "logs5": replace(SAMPLED, logprobs=5),
    "logs20": replace(SAMPLED, logprobs=20),
    "drawn20": replace(SAMPLED, logprobs=20, logprobs_of=Distribution.SAMPLED),
    "grammar": replace(SAMPLED, grammar=Grammar(GrammarKind.REGEX, r"[a-z ]+"), eos_token_ids=(2,)),
    "mixed": SAMPLED,  # one room; the others are greedy
}


@dataclass(slots=True)
class Watched:
    """An engine whose calls of ``forward`` are remembered, in seconds."""

    engine: Engine
    spent: Spent
    begun: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    inner: list[float] = field(default_factory=list)  # of it in the kernels

    def prepare(self, grammar: Grammar, told: Callable[[], None]) -> None:
        self.engine.prepare(grammar, told)

    def begin(self, sequence: Room) -> None:
        self.engine.begin(sequence)

    def end(self, key: RoomKey) -> None:
        self.engine.end(key)

    def keep(self, key: RoomKey, pages: Sequence[int]) -> None:
        self.engine.keep(key, pages)

    def restore(self, key: RoomKey, pages: Sequence[int]) -> None:
        self.engine.restore(key, pages)

    def forward(self, items: Sequence[Item]) -> list[Result]:
        before = self.spent.forward_s
        self.begun.append(time.perf_counter())
        results = self.engine.forward(items)
        self.ended.append(time.perf_counter())
        self.inner.append(self.spent.forward_s - before)
        return results


def core_of(engine: Engine, config: EngineConfig, rooms: int) -> Scheduler:
    settings = DecodeConfig(engine=config, max_rooms=rooms, prefix_cache=False)
    return Scheduler(D, settings, buffers(D), engine.pages)


def measured(engine: Engine, config: EngineConfig, kind: str, rooms: int, steps: int) -> Any:
    """Return medians in microseconds of so many steps of so many rooms."""
    wake, core = Wake(), core_of(engine, config, rooms)
    core_s: list[float] = []
    encode = msgspec.msgpack.Encoder().encode
    poller = select.poll()
    poller.register(wake.fd, select.POLLIN)
    with timed_model(engine) as spent:
        watched = Watched(engine, spent)
        lane = ForwardLane(watched, wake)

        def take(event: object) -> None:
            for command in core.handle(event, 0.0):  # type: ignore[arg-type]
                if isinstance(command, Begin | Run | End | Prepare):
                    lane.execute(command)
                elif isinstance(command, Tell):
                    encode(Outputs(command.outputs))

        most = rooms + WARM_STEPS + steps
        for room in range(1, rooms + 1):
            own = "greedy" if kind == "mixed" and room > 1 else kind
            sampling = replace(KINDS[own], max_tokens=most + 8)
            prompt = tuple((room * 31 + place * 7) % 1000 + 10 for place in range(PROMPT))
            take(Submitted(Submit(room, 1, prompt, sampling, D.instance, 1e6)))
        first = None  # step of which all rooms are a part
        while first is None or len(watched.ended) < first + steps:
            assert poller.poll(60_000), "the engine does not answer"
            begun = time.thread_time()
            for event in wake.take():
                take(event)
            core_s.append(time.thread_time() - begun)
            if first is None and len(core.stages.running.rooms) == rooms:
                first = len(watched.ended) + WARM_STEPS
        lane.execute(Keep(RoomKey(1, 1), (0,)))  # answered when all before it is done
        told: list[object] = []
        while not any(isinstance(event, Kept) for event in told):
            assert poller.poll(60_000), "the engine does not answer"
            told = wake.take()
        for room in range(1, rooms + 1):
            engine.end(RoomKey(room, 1))
    last = first + steps
    starts, ends = watched.begun[first:last], watched.ended[first:last]
    inner = watched.inner[first:last]
    waits = [b - e for b, e in zip(starts, watched.ended[first - 1 : last - 1], strict=True)]
    beside = [e - b - i for b, e, i in zip(starts, ends, inner, strict=True)]
    found = {"core": core_s[-steps:], "wait": waits, "engine": beside, "forward": inner}
    medians = {f"{name}_us": 1e6 * statistics.median(values) for name, values in found.items()}
    return {"kind": kind, "rooms": rooms, **medians, "shortest_us": 1e6 * min(inner)}


def of_rounds(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of some rounds, the shortest forward of all, and the shares."""
    row = {"kind": rounds[0]["kind"], "rooms": rounds[0]["rooms"]}
    for name in (*PARTS, "forward"):
        row[f"{name}_us"] = statistics.median(found[f"{name}_us"] for found in rounds)
    row["shortest_us"] = min(found["shortest_us"] for found in rounds)
    row["added_us"] = sum(row[f"{part}_us"] for part in PARTS)
    row["share"] = row["added_us"] / row["shortest_us"]
    return row


def show(row: dict[str, Any]) -> None:
    parts = " + ".join(f"{part} {row[f'{part}_us']:.0f}" for part in PARTS)
    print(
        f"{row['kind']:<10}{row['rooms']:>3} rooms: {parts} = {row['added_us']:.0f} us a step, "
        f"{row['share']:.1%} of a forward of {row['shortest_us']:.0f} us"
        f" (median {row['forward_us']:.0f})",
        flush=True,
    )


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(argv: Sequence[str]) -> int:
    """Measure, print a line for each number of rooms, write JSON."""
    parser = argparse.ArgumentParser(prog="scripts/bench step", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--kernels", default="auto", choices=["auto", "native", "torch"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rooms", type=numbers, default=[1, 8, 32])
    parser.add_argument("--kinds", default=",".join(KINDS), help="(%(default)s)")
    parser.add_argument("--steps-ahead", type=int, default=1, choices=[0, 1])
    parser.add_argument("--steps", type=int, default=40, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("bench-step.json"))
    flags = parser.parse_args(argv)
    most = max(flags.rooms)
    pages = most * -(-(PROMPT + most + WARM_STEPS + flags.steps + 16) // PAGE_SIZE)
    config = EngineConfig(
        device="cpu",
        dtype=flags.dtype,
        kernels=flags.kernels,
        threads=flags.threads,
        page_size=PAGE_SIZE,
        kv_tokens=pages * PAGE_SIZE,
        batch_rooms=most,
        steps_ahead=flags.steps_ahead,
    )
    engine = Engine.load(config, model_directory(flags.model))
    cells = [(kind, rooms) for kind in flags.kinds.split(",") for rooms in flags.rooms]
    found: dict[tuple[str, int], list[Any]] = {cell: [] for cell in cells}
    for _ in range(flags.rounds):
        for kind, rooms in cells:
            found[kind, rooms].append(measured(engine, config, kind, rooms, flags.steps))
    rows = [of_rounds(rounds) for rounds in found.values()]
    for row in rows:
        show(row)
    document = {"schema_version": 1, "load_1m": os.getloadavg()[0], "threads": flags.threads}
    document |= {"dtype": flags.dtype, "kernels": type(engine._model).__name__, "rows": rows}
    flags.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
