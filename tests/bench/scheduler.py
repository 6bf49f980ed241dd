"""What a decode step costs beside the forward: the core, the way to the lane and back, the layout.

Everything is measured with one step after the other and with one ahead, in turns, in one run; no
weights are needed. Times are medians in microseconds: of the processor for the core and the layout,
which compute, and of the clock for what the engine waits.
"""

from __future__ import annotations

import argparse
import json
import select
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from daemons.decode.config import DecodeConfig
from daemons.decode.scheduler import Scheduler
from daemons.engine.batch import fault, lay_out
from daemons.engine.config import EngineConfig
from daemons.engine.step import Item, Result, Run, StepDone
from daemons.engine.step import Sequence as Room
from daemons.protocol.generate import Grammar, Outputs, Sampling, Submit, TokenOut
from daemons.protocol.ids import RoomKey
from daemons.rank.forward_lane import ForwardLane
from daemons.runtime.commands import Tell
from daemons.runtime.events import Submitted
from daemons.runtime.reactor import Wake
from tests.support.cores import D, buffers

ROOMS = (1, 64, 1024)
PAGE_SIZE = 16
PROMPT = 512  # tokens: so many pages has each room beside the ones that it grows by
MOST = 1_000
FORWARD_S = 0.005  # of the stand-in for an engine, which leaves the interpreter alone
WARM_STEPS = 20


@dataclass(slots=True)
class Bench:
    """A core with rooms that run, and the steps that it has asked for."""

    core: Scheduler
    runs: deque[Run] = field(default_factory=deque)

    def take(self, event: object) -> list[Any]:
        """Hand an event to the core; returns its commands and remembers the steps."""
        commands: list[Any] = self.core.handle(event, 0.0)  # type: ignore[arg-type]
        self.runs += [command for command in commands if isinstance(command, Run)]
        return commands

    def answer(self) -> StepDone:
        """Return the end of the oldest step."""
        items = self.runs.popleft().items
        token = TokenOut(7)
        return StepDone(tuple(Result(i.key, token if i.samples else None) for i in items))


def running(rooms: int, steps_ahead: int) -> Bench:
    """Return a core in which so many rooms run."""
    engine = EngineConfig(
        page_size=PAGE_SIZE,
        batch_rooms=rooms,
        batch_tokens=1 << 20,
        chunk_tokens=1 << 20,
        steps_ahead=steps_ahead,
    )
    config = DecodeConfig(engine=engine, max_rooms=rooms)
    pages = rooms * -(-(PROMPT + MOST) // PAGE_SIZE)
    bench = Bench(Scheduler(D, config, buffers(D), pages))
    prompt, sampling = tuple(range(PROMPT)), Sampling(max_tokens=MOST, eos_token_ids=(2,))
    for room in range(1, rooms + 1):
        bench.take(Submitted(Submit(room, 1, prompt, sampling, D.instance, 1e6)))
    while len(bench.core.stages.running.rooms) < rooms:
        bench.take(bench.answer())
    for _ in range(WARM_STEPS):
        bench.take(bench.answer())
    return bench


def core_us(bench: Bench, steps: int) -> list[float]:
    """Return how long the core takes for each of so many steps."""
    took = []
    for _ in range(steps):
        event = bench.answer()
        begun = time.thread_time()
        bench.take(event)
        took.append(1e6 * (time.thread_time() - begun))
    return took


@dataclass(slots=True)
class Sleeper:
    """In place of an engine: takes a while, and remembers when it had nothing to do."""

    begun: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    def prepare(self, grammar: Grammar, told: Callable[[], None]) -> None: ...
    def begin(self, sequence: Room) -> None: ...
    def end(self, key: RoomKey) -> None: ...
    def keep(self, key: RoomKey, pages: Sequence[int]) -> None: ...
    def restore(self, key: RoomKey, pages: Sequence[int]) -> None: ...

    def forward(self, items: Sequence[Item]) -> list[Result]:
        """Sleep for a forward."""
        self.begun.append(time.perf_counter())
        time.sleep(FORWARD_S)
        results = [Result(item.key, TokenOut(7)) for item in items]
        self.ended.append(time.perf_counter())
        return results


def idle_us(bench: Bench, steps: int) -> list[float]:
    """Return how long the engine has nothing to do between steps, over a real lane and wake."""
    wake, engine = Wake(), Sleeper()
    lane = ForwardLane(engine, wake)
    encode = msgspec.msgpack.Encoder().encode
    poller = select.poll()
    poller.register(wake.fd, select.POLLIN)
    while bench.runs:
        lane.execute(bench.runs.popleft())
    while len(engine.ended) < steps:
        poller.poll()
        for event in wake.take():
            for command in bench.core.handle(event, 0.0):  # type: ignore[arg-type]
                if isinstance(command, Run):
                    lane.execute(command)
                elif isinstance(command, Tell):
                    encode(Outputs(command.outputs))
    gaps = zip(engine.begun[1:steps], engine.ended, strict=False)
    return [1e6 * (begun - ended) for begun, ended in gaps]


def layout_us(items: Sequence[Item], steps: int) -> list[float]:
    """Return how long checking and laying out a step takes, in the lane."""
    took, cpu = [], torch.device("cpu")
    limits = {"vocab_size": 50_000, "max_model_len": 1 << 20, "pages": 1 << 24}
    for _ in range(steps):
        begun = time.thread_time()
        for item in items:
            assert not fault(item, page_size=PAGE_SIZE, known=item.pages, **limits)
        lay_out(items, PAGE_SIZE, cpu)
        took.append(1e6 * (time.thread_time() - begun))
    return took


def in_turns(
    rounds: int, rooms: int, measure: Callable[[Bench], list[float]]
) -> tuple[float, float]:
    """Return the median without and with a step ahead."""
    took: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for ahead in (0, 1):
            took[ahead].extend(measure(running(rooms, ahead)))
    return statistics.median(took[0]), statistics.median(took[1])


def main(argv: Sequence[str]) -> int:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(prog="bench scheduler", description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    flags = parser.parse_args(argv)
    rows: list[dict[str, object]] = []
    heads = ("rooms", "core µs", "ahead", "per room", "idle µs", "ahead", "layout µs")
    print(("{:>10}" * len(heads)).format(*heads))
    for rooms in ROOMS:
        core = in_turns(flags.rounds, rooms, lambda bench: core_us(bench, flags.steps))
        idle = in_turns(flags.rounds, rooms, lambda bench: idle_us(bench, flags.steps))
        items = running(rooms, 0).runs[0].items
        layout = statistics.median(layout_us(items, flags.steps))
        row = {
            "rooms": rooms,
            "core_us": core,
            "core_us_per_room": core[1] / rooms,
            "engine_idle_us": idle,
            "layout_us": layout,
        }
        rows.append(row)
        shown = (rooms, *core, core[1] / rooms, *idle, layout)
        print(("{:>10.0f}" * 3 + "{:>10.2f}" + "{:>10.0f}" * 3).format(*shown), flush=True)
    if flags.json:
        flags.json.write_text(json.dumps({"schema_version": 1, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
