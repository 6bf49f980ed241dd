"""How fast KV pages reach another process, by each backend, beside what the machine can do.

Each line is one shape of KV, so many pages per room, one or eight rooms; eight are dealt to
``--lanes`` peers and go at once. In turns, in one run: a memcpy in one piece per room, a memcpy in
the pieces of the transfer, one plain loopback socket, Mooncake called bare (one blocking call per
page and region; blocking calls with ideally merged copies), then each backend as a prefill uses it:
plan, then write, all layers at once. Figures are medians, in GB/s; what counts are the ratios of
one line. Behind a forward a plan is made before its layers are there: what is left to do then is
measured in rounds of their own, which send by groups of layers and have no column.
``--layouts`` compares how a pool could be laid out, ``--sums`` what checksums cost.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.bench.transfer_goals import GOALS, Line
from tests.bench.transfer_layouts import LAYOUTS, layouts, sums
from tests.bench.transfer_ways import (
    Backend,
    Bare,
    Case,
    Lanes,
    Memory,
    Way,
    measure,
    plain_socket,
)

PAGES = (1, 4, 16, 64, 256, 1024, 4096)
MODELS = {"smollm2-135m": (30, 3, 16 * 64 * 2), "8b": (32, 8, 16 * 128 * 2)}  # page of 16 tokens


def host_facts() -> dict[str, object]:
    """Return what a reader must know to compare."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "commit": commit,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
    }


def backends(wanted: str) -> list[str]:
    """Return the backends to measure; those that are not installed are left out aloud."""
    names = wanted.split(",")
    if "nixl" in names and importlib.util.find_spec("nixl_cu12") is None:
        print("nixl is not installed: not measured")
        names.remove("nixl")
    return names


def main(argv: Sequence[str]) -> int:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(prog="bench transfer", description=__doc__)
    parser.add_argument("--pages", default=",".join(map(str, PAGES)), help="per room")
    parser.add_argument("--rooms", default="1,8")
    parser.add_argument("--lanes", type=int, default=2, help="peers that rooms are dealt to")
    parser.add_argument("--shapes", default=",".join(MODELS))
    parser.add_argument("--backends", default="mooncake,cma,nixl")
    parser.add_argument("--pool-mib", type=int, default=512, help="of each of two or more pools")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each line, at least")
    parser.add_argument("--layouts", action="store_true", help="compare layouts of a pool instead")
    parser.add_argument("--sums", action="store_true", help="what checksums cost, instead")
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    flags = parser.parse_args(argv)
    host = host_facts()
    print(", ".join(f"{name} {value}" for name, value in host.items()))
    memory = Memory(flags.pool_mib << 20, Lanes(flags.lanes))
    ours = {name: Backend(name, memory) for name in backends(flags.backends)}
    shapes = [name for name in flags.shapes.split(",") if name in MODELS]
    models = {name: MODELS[name] for name in shapes}
    if flags.layouts:
        rows = layouts(models, memory, ours, flags.seconds)
    elif flags.sums:
        rows = sums(models, memory, ours, flags.seconds)
    else:
        rows = speeds(flags, models, memory, ours)
    for backend in ours.values():
        backend.close()
    if flags.json:
        document = {"schema_version": 2, "host": host, "rows": rows}
        flags.json.write_text(json.dumps(document, indent=1))
    return 0


def speeds(
    flags: argparse.Namespace,
    models: dict[str, tuple[int, int, int]],
    memory: Memory,
    ours: dict[str, Backend],
) -> list[dict[str, object]]:
    """Print the table and what it says of the goals."""
    rows, lines = [], []
    with plain_socket(memory) as stream:
        ways: dict[str, Way] = {"memcpy": memory.memcpy, "copies": memory.copies, "socket": stream}
        if "mooncake" in ours:
            bare = Bare(memory, ours["mooncake"])
            ways |= {"naive": bare.naive, "merged": bare.merged}
        ways |= {name: backend.send for name, backend in ours.items()}
        head = f"{'shape':>13}{'rooms':>6}{'pages':>6}{'MiB':>8}"
        print(
            head + "".join(f"{name:>14}" for name in ways) + f"{'plan %':>8}{'us':>6}{'wait %':>8}"
        )
        for case in cases(flags, models):
            row, line = measured(case, ways, ours, flags.seconds)
            rows.append(row)
            lines.append(line)
    print("GB/s: median and half of the middle half; naive and merged are Mooncake called bare;")
    print("plan: of the fastest of ours, in all, and microseconds per chunk; it is in the rates")
    print("wait: what of it bytes wait for that go behind a forward, a group of layers at a time;")
    print("it takes for granted that each group is planned when its layers are there")
    for backend in ours.values():
        print(f"{backend.name} went by {backend.transport}")
    for goal in GOALS:
        print(goal.verdict(lines))
    return rows


def cases(flags: argparse.Namespace, models: dict[str, tuple[int, int, int]]) -> Iterator[Case]:
    """Yield the lines of the table."""
    for name, model in models.items():
        shape = LAYOUTS["layer-kind-head-page"].shape(name, model)
        pool_pages = (flags.pool_mib << 20) // shape.whole_page_bytes
        for rooms in map(int, flags.rooms.split(",")):
            for pages in map(int, flags.pages.split(",")):
                yield Case(shape, pages, rooms, pool_pages)


def measured(
    case: Case, ways: dict[str, Way], ours: dict[str, Backend], seconds: float
) -> tuple[dict[str, object], Line]:
    """Measure one line and print it."""
    followed: dict[str, Way] = {f"{name} behind": backend.follow for name, backend in ours.items()}
    rates = measure(case, ways | followed, seconds)
    told = {name: quarters(rates[name]) for name in ways}
    fastest = max(ours, key=lambda name: told[name][0])
    rounds, backend = len(rates[fastest]), ours[fastest]
    planning = backend.planning(rounds, len(list(case.chunks(0))))
    words = f"{case.shape.name:>13}{case.rooms:>6}{case.pages:>6}{case.bytes / (1 << 20):>8.1f}"
    cells = "".join(f"{mid:>8.3f} ±{(high - low) / 2:<4.2f}" for low, mid, high in told.values())
    plan = f"{100 * planning.share:>8.2f}{planning.each_us:>6.0f}"
    print(words + cells + plan + f"{100 * planning.waited:>8.2f}", flush=True)
    name = f"{case.shape.name} {case.rooms} x {case.pages}"
    room_bytes = case.bytes // case.rooms
    line = Line(name, room_bytes, {n: (m, a, b) for n, (a, m, b) in told.items()}, planning)
    row = {
        "shape": case.shape.name,
        "rooms": case.rooms,
        "pages": case.pages,
        "bytes": case.bytes,
        "gb_per_s": {name: mid for name, (_, mid, _) in told.items()},
        "samples": rates,
        "planning_share": planning.share,
        "planning_us": planning.each_us,
        "waited_share": planning.waited,
        "planned_for": fastest,
    }
    return row, line


def quarters(found: list[float]) -> tuple[float, float, float]:
    """Return the lower quarter, the median and the upper quarter."""
    low, mid, high = statistics.quantiles(found, n=4, method="inclusive")
    return low, mid, high


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
