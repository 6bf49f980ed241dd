"""The engine beside llama.cpp's server and transformers: same weights, type, threads, one run.

- Ours is ``daemons.engine.bench``, through ``Engine.forward``; its limits are measured there.
- llama.cpp's server is built by hand (``--server``: the path of ``llama-server``; ``--gguf``: the
  same model, ``{}`` in the place of f32 and bf16); what it says of its times is believed. Its
  cache is of its own choice. Without it there is no such column.
- transformers: its own classes and cache, ``sdpa``, one forward a step.
- The three take turns, ``--rounds`` times; the table shows medians of rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CACHE = Path.home() / ".cache" / "pd-bench" / "llama"
CONTEXT = 128  # tokens before the first decoded one
SAID = 96  # tokens of a decode run
READY_S = 60.0
ASK_S = 300.0
Cells = dict[str, float]  # "decode 8" or "prefill 512": tokens/s


def ours(asked: argparse.Namespace, dtype: str, kernels: str) -> tuple[Cells, dict[str, Any]]:
    command = [sys.executable, "-m", "daemons.engine.bench", "--dtype", dtype]
    command += ["--kernels", kernels, "--threads", str(asked.threads), "--contexts", str(CONTEXT)]
    command += ["--rooms", ",".join(map(str, asked.rooms))]
    command += ["--prompts", ",".join(map(str, asked.prompts)), "--samples", "5"]
    document = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    cells = {f"decode {row['rooms']}": row["tokens_per_s"] for row in document["decode"]}
    cells |= {f"prefill {row['tokens']}": row["tokens_per_s"] for row in document["prefill"]}
    return cells, document


@contextlib.contextmanager
def llama_server(asked: argparse.Namespace, dtype: str) -> Iterator[str]:
    """Start it with a slot for each room; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rooms, longest = max(asked.rooms), max(asked.prompts)
    context = max(rooms * (CONTEXT + SAID + 64), longest + 64)
    gguf = asked.gguf.format("f32" if dtype == "fp32" else dtype)
    command = [asked.server, "-m", gguf, "--port", str(port), "-t", str(asked.threads)]
    command += ["-tb", str(asked.threads), "-np", str(rooms), "-c", str(context), "--kv-unified"]
    command += ["--no-warmup", "--cache-ram", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=2):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("llama-server does not answer") from None
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(10)


def complete(address: str, prompt: list[int], tokens: int) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "cache_prompt": False}
    body |= {"temperature": 0.0, "top_k": 1, "samplers": ["top_k"]}
    request = urllib.request.Request(
        f"{address}/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=ASK_S) as answer:
        timings: dict[str, Any] = json.load(answer)["timings"]
    return timings


def llama(asked: argparse.Namespace, dtype: str) -> Cells:
    cells: Cells = {}
    with llama_server(asked, dtype) as address:
        complete(address, [5] * 32, 4)
        for rooms in asked.rooms:
            with ThreadPoolExecutor(rooms) as pool:
                prompts = [[5 + room] * CONTEXT for room in range(rooms)]
                found = list(pool.map(lambda text: complete(address, text, SAID), prompts))
            # They overlap as far as their prompts let them, which flatters the larger numbers.
            cells[f"decode {rooms}"] = sum(timing["predicted_per_second"] for timing in found)
        for tokens in asked.prompts:
            timing = complete(address, [5] * tokens, 1)
            cells[f"prefill {tokens}"] = timing["prompt_per_second"]
    return cells


def transformers(asked: argparse.Namespace, dtype: str) -> Cells:
    command = [sys.executable, "-m", "tests.bench.engine", "--transformers", dtype]
    command += ["--threads", str(asked.threads), "--model", str(asked.model)]
    command += ["--rooms", ",".join(map(str, asked.rooms))]
    command += ["--prompts", ",".join(map(str, asked.prompts))]
    found: Cells = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def transformers_here(asked: argparse.Namespace) -> Cells:
    """In a process of its own: torch's threads are set once."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(asked.threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[asked.transformers]
    model = AutoModelForCausalLM.from_pretrained(
        asked.model, dtype=dtype, attn_implementation="sdpa"
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
            begin = time.perf_counter()
            model(torch.full((1, tokens), 5), use_cache=True, logits_to_keep=1)
            cells[f"prefill {tokens}"] = tokens / (time.perf_counter() - begin)
    return cells


def median_of(rounds: list[Cells]) -> Cells:
    return {cell: statistics.median(found[cell] for found in rounds) for cell in rounds[0]}


def compare(asked: argparse.Namespace, dtype: str) -> dict[str, Any]:
    rounds: dict[str, list[Cells]] = {"ours": [], "ours, torch": [], "transformers": []}
    documents = []
    for _ in range(asked.rounds):
        cells, document = ours(asked, dtype, "auto")
        rounds["ours"].append(cells)
        documents.append(document)
        if asked.server:
            rounds.setdefault("llama.cpp", []).append(llama(asked, dtype))
        rounds["ours, torch"].append(ours(asked, dtype, "torch")[0])
        rounds["transformers"].append(transformers(asked, dtype))
    return {
        "dtype": dtype,
        "tokens_per_s": {name: median_of(found) for name, found in rounds.items()},
        "rounds": rounds,
        "ours": documents,
    }


def shares_of(documents: list[dict[str, Any]]) -> Cells:
    found: dict[str, list[float]] = {}
    for document in documents:
        for row in document["decode"]:
            found.setdefault(f"decode {row['rooms']}", []).append(row["read_share"])
        for row in document["prefill"]:
            found.setdefault(f"prefill {row['tokens']}", []).append(row["flop_share"])
    return {cell: statistics.median(values) for cell, values in found.items()}


def show(result: dict[str, Any]) -> None:
    names = list(result["tokens_per_s"])
    shares = shares_of(result["ours"])
    print(
        f"\n{result['dtype']:<14}" + "".join(f"{name:>14}" for name in names) + "  share of limit"
    )
    for cell, share in shares.items():
        row = "".join(f"{result['tokens_per_s'][name][cell]:>14.0f}" for name in names)
        print(f"{cell:<14}{row}{share:>16.2f}")
    for row in result["ours"][-1]["overhead"]:
        print(
            f"overhead at {row['rooms']}: {row['added_s'] * 1e6:.0f} us on a forward of "
            f"{row['forward_s'] * 1e6:.0f} us, {row['share']:.1%}"
        )


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(argv: list[str]) -> int:
    """Compare, print tables, write JSON."""
    from daemons.cluster.models import model_directory

    parser = argparse.ArgumentParser(prog="scripts/bench engine", description=__doc__)
    server = CACHE / "build/bin/llama-server"
    parser.add_argument("--server", default=str(server) if server.exists() else "")
    parser.add_argument("--gguf", default=str(CACHE / "smollm2-{}.gguf"))
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rooms", type=numbers, default=[1, 8, 32])
    parser.add_argument("--prompts", type=numbers, default=[512, 2048])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("bench-engine.json"))
    parser.add_argument("--transformers", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    asked.model = asked.model or str(model_directory("smollm2-135m-instruct"))
    if asked.transformers:
        print(json.dumps(transformers_here(asked)))
        return 0
    results = [compare(asked, dtype) for dtype in asked.dtypes.split(",")]
    for result in results:
        show(result)
    document = {"load_1m": os.getloadavg()[0], "threads": asked.threads, "results": results}
    asked.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
