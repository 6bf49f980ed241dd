"""The engine beside llama.cpp's server, vLLM for CPUs and transformers: one model, one run.

- Ours is ``daemons.engine.bench``, through ``Engine.forward``; its limits are measured there.
- Competitors are installed by ``--with`` (``llama.cpp``, ``vllm``), each into a folder of its own
  below ``~/.cache/pd-bench``; one that is not there is said, not left out in silence.
- transformers: its own classes and cache, ``sdpa``, one forward a step.
- All take turns, ``--rounds`` times: a cell is the median of rounds (least-most), and says whether
  the goals are met: so much of the limit, and ahead of every competitor.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench import llama_cpp, vllm_cpu
from tests.bench.cells import CONTEXT, Asked, Cells, Lacking, Peer, Spread, spread_of, verdicts

INSTALLED = {peer.name: peer for peer in (llama_cpp.PEER, vllm_cpu.PEER)}
HERE = Path(__file__).parents[2]


def ours(asked: Asked, dtype: str, kernels: str) -> tuple[Cells, dict[str, Any]]:
    command = [sys.executable, "-m", "daemons.engine.bench", "--dtype", dtype]
    command += ["--kernels", kernels, "--contexts", str(CONTEXT), *_told(asked), "--samples", "5"]
    document = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    cells = {f"decode {row['rooms']}": row["tokens_per_s"] for row in document["decode"]}
    cells |= {f"prefill {row['tokens']}": row["tokens_per_s"] for row in document["prefill"]}
    return cells, document


def _told(asked: Asked) -> list[str]:
    told = ["--threads", str(asked.threads), "--model", str(asked.model)]
    told += ["--rooms", ",".join(map(str, asked.rooms))]
    return [*told, "--prompts", ",".join(map(str, asked.prompts))]


def transformers(asked: Asked, dtype: str) -> Cells:
    command = [sys.executable, "-m", "tests.bench.engine", "--transformers", dtype, *_told(asked)]
    found: Cells = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def transformers_here(asked: Asked, dtype: str) -> Cells:
    """In a process of its own: torch's threads are set once."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(asked.threads)
    model = AutoModelForCausalLM.from_pretrained(
        asked.model,
        dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype],
        attn_implementation="sdpa",
    )
    cells: Cells = {}
    with torch.inference_mode():
        for rooms in asked.rooms:
            out = model(torch.full((rooms, CONTEXT), 5), use_cache=True, logits_to_keep=1)
            times = []
            for _ in range(12):
                begin = time.perf_counter()
                step = torch.full((rooms, 1), 5)
                out = model(step, past_key_values=out.past_key_values, use_cache=True)
                out.logits.argmax(-1).tolist()
                times.append(time.perf_counter() - begin)
            cells[f"decode {rooms}"] = rooms / statistics.median(times[2:])
        for tokens in asked.prompts:
            times = []
            for _ in range(3):
                begin = time.perf_counter()
                model(torch.full((1, tokens), 5), use_cache=True, logits_to_keep=1)
                times.append(time.perf_counter() - begin)
            cells[f"prefill {tokens}"] = tokens / statistics.median(times[1:])
    return cells


def compare(
    asked: Asked, dtype: str, rounds: int, peers: list[Peer], absent: dict[str, str]
) -> dict[str, Any]:
    """Have all take turns; a peer that fails is out, and ``absent`` says why."""
    found: dict[str, list[Cells]] = {}
    documents: list[dict[str, Any]] = []
    others: dict[str, Callable[[], Cells]] = {
        "ours, torch": lambda: ours(asked, dtype, "torch")[0],
        "transformers": lambda: transformers(asked, dtype),
    }
    others |= {peer.name: lambda peer=peer: peer.measure(asked, dtype) for peer in peers}
    for turn in range(rounds):
        cells, document = ours(asked, dtype, "auto")
        found.setdefault("ours", []).append(cells)
        documents.append(document)
        for name, measure in list(others.items()):
            print(f"{dtype}, round {turn + 1} of {rounds}: {name}", file=sys.stderr)
            try:
                found.setdefault(name, []).append(measure())
            except (Lacking, subprocess.SubprocessError, OSError) as error:
                absent[f"{name}, {dtype}"] = f"failed: {error}"
                del others[name], found[name]
    return {"dtype": dtype, "rounds": found, "cells": _cells(found, documents), "ours": documents}


def _cells(found: dict[str, list[Cells]], documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each cell's speeds with their spread, its share of the limit, and the verdicts."""
    shares: dict[str, list[float]] = {}
    for document in documents:
        for row in document["decode"]:
            shares.setdefault(f"decode {row['rooms']}", []).append(row["read_share"])
        for row in document["prefill"]:
            shares.setdefault(f"prefill {row['tokens']}", []).append(row["flop_share"])
    cells = {}
    for cell, values in shares.items():
        speeds = {name: spread_of([turn[cell] for turn in turns]) for name, turns in found.items()}
        share = spread_of(values)
        cells[cell] = {
            "tokens_per_s": {name: dataclasses.asdict(speed) for name, speed in speeds.items()},
            "share": dataclasses.asdict(share),
            "verdicts": [dataclasses.asdict(one) for one in verdicts(cell, speeds, share)],
        }
    return cells


def show(result: dict[str, Any]) -> None:
    names = list(result["rounds"])
    reads = [document["limits"]["read_bytes_per_s"] / 1e9 for document in result["ours"]]
    computes = [document["limits"]["flops_per_s"] / 1e9 for document in result["ours"]]
    print(
        f"\n{result['dtype']}: this host reads {spread_of(reads)} GB/s, "
        f"computes {spread_of(computes)} GFLOP/s"
    )
    print(f"{'tokens/s':<14}" + "".join(f"{name:>20}" for name in names) + "  share of limit")
    for cell, row in result["cells"].items():
        speeds = "".join(f"{Spread(**row['tokens_per_s'][name])!s:>20}" for name in names)
        share = row["share"]
        said = "; ".join(
            f"{'met' if one['is_met'] else 'MISSED'}: {one['goal']}" for one in row["verdicts"]
        )
        print(
            f"{cell:<14}{speeds}  {share['median']:.2f} ({share['least']:.2f}-{share['most']:.2f})"
            f"  {said}"
        )
    for row in result["ours"][-1]["overhead"]:
        print(
            f"overhead at {row['rooms']}: {row['added_s'] * 1e6:.0f} us on a forward of "
            f"{row['forward_s'] * 1e6:.0f} us, {row['share']:.1%}"
        )


def available(wanted: list[str], threads: int) -> tuple[list[Peer], dict[str, str]]:
    """Install what is wanted; return the peers that are there, and why the others are not."""
    absent = {}
    for name in wanted:
        if INSTALLED[name].version() is None:
            try:
                INSTALLED[name].install(threads)
            except (Lacking, OSError) as error:
                absent[name] = f"could not be installed: {error}"
    there = []
    for name, peer in INSTALLED.items():
        if peer.version() is not None:
            there.append(peer)
        else:
            absent.setdefault(name, f"not installed; scripts/bench engine --with {name} does so")
    return there, absent


def commit() -> str:
    """Return what is measured, with a mark when the tree is changed."""
    command = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main(argv: list[str]) -> int:
    """Compare, print tables, write JSON."""
    from daemons.cluster.models import model_directory

    parser = argparse.ArgumentParser(prog="scripts/bench engine", description=__doc__)
    parser.add_argument(
        "--with", dest="wanted", default="", help="install these first: llama.cpp,vllm"
    )
    parser.add_argument("--without", default="", help="leave these out")
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rooms", type=numbers, default=(1, 8, 32))
    parser.add_argument("--prompts", type=numbers, default=(512, 2048))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("bench-engine.json"))
    parser.add_argument("--transformers", default="", help=argparse.SUPPRESS)
    told = parser.parse_args(argv)
    model = Path(told.model or model_directory("smollm2-135m-instruct"))
    asked = Asked(model, told.threads, told.rooms, told.prompts)
    if told.transformers:
        print(json.dumps(transformers_here(asked, told.transformers)))
        return 0
    wanted, without = (
        list(filter(None, names.split(","))) for names in (told.wanted, told.without)
    )
    if unknown := {*wanted, *without} - set(INSTALLED):
        parser.error(
            f"no competitor {', '.join(sorted(unknown))}; there are {', '.join(INSTALLED)}"
        )
    peers, absent = available(wanted, told.threads)
    peers = [peer for peer in peers if peer.name not in without]
    absent |= dict.fromkeys(without, "left out by --without")
    results = [
        compare(asked, dtype, told.rounds, peers, absent) for dtype in told.dtypes.split(",")
    ]
    for result in results:
        show(result)
    for name, why in absent.items():
        print(f"no figures of {name}: {why}")
    document = {
        "schema_version": 2,
        "commit": commit(),
        "load_1m": os.getloadavg()[0],
        "machine": results[0]["ours"][0]["machine"],
        "versions": {
            "python": platform.python_version(),
            "torch": version("torch"),
            "transformers": version("transformers"),
            **{peer.name: peer.version() for peer in peers},
        },
        "settings": {
            "model": model.name,
            "threads": told.threads,
            "rooms": told.rooms,
            "prompts": told.prompts,
            "context": CONTEXT,
            "rounds": told.rounds,
        },
        "absent": absent,
        "results": results,
    }
    told.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
