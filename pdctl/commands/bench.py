"""``pdctl bench engine``: how fast the engine is on this host, beside what the host could do."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from pdctl import options
from pdctl.errors import CommandError, Exit
from pdctl.render import Output, View, show

COLUMNS = ("WORK", "ROOMS", "TOKENS", "TIME", "TOKENS/S", "OF READING", "OF COMPUTING")


class Device(StrEnum):
    """Where the model runs."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    """What is computed in."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"


class Weights(StrEnum):
    """What weights are kept in."""

    AUTO = "auto"
    INT8 = "int8"
    INT4 = "int4"


class Kernels(StrEnum):
    """Who computes on a CPU."""

    AUTO = "auto"
    NATIVE = "native"
    TORCH = "torch"


app = typer.Typer(help="Measure what this host can do.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure what this host can do."""


@app.command("engine")
def engine(
    output: options.Format = Output.TABLE,
    model: Annotated[
        str, typer.Option(help="The embedded model, or a model directory.")
    ] = "smollm2-135m-instruct",
    device: Annotated[
        Device, typer.Option(help="auto (CUDA where there is some), cpu or cuda.")
    ] = Device.AUTO,
    dtype: Annotated[
        Dtype, typer.Option(help="auto (fp32 on a CPU, bf16 on CUDA), fp32 or bf16.")
    ] = Dtype.AUTO,
    weights: Annotated[
        Weights, typer.Option(help="auto (as they are), int8 or int4.")
    ] = Weights.AUTO,
    kernels: Annotated[
        Kernels, typer.Option(help="auto (native where built), native or torch.")
    ] = Kernels.AUTO,
    threads: Annotated[int, typer.Option(help="0: one for each core.", min=0)] = 0,
    rooms: Annotated[str, typer.Option(help="Batches of decode.", metavar="N,N")] = "1,8,32",
    contexts: Annotated[str, typer.Option(help="Tokens before.", metavar="N,N")] = "128,2048",
    prompts: Annotated[str, typer.Option(help="Tokens of prompts.", metavar="N,N")] = "512,2048",
    samples: Annotated[int, typer.Option(help="Medians are of so many.", min=1)] = 5,
) -> int:
    """Time decode steps and prompts; the JSON also has the rates that a simulator needs.

    Example: pdctl bench engine -o json
    """
    document = _measured(
        {
            "model": model,
            "device": device,
            "dtype": dtype,
            "weights": weights,
            "kernels": kernels,
            "threads": threads,
            "rooms": rooms,
            "contexts": contexts,
            "prompts": prompts,
            "samples": samples,
        }
    )
    rows = [*map(_decode_row, document["decode"]), *map(_prefill_row, document["prefill"])]
    names = [f"{row[0]}-{row[1]}-{row[2]}" for row in rows]
    show(View(document, COLUMNS, rows, names, above=_head(document)), output)
    return Exit.OK


def _measured(asked: dict[str, Any]) -> dict[str, Any]:
    """Run the engine's own benchmark in a process of its own; torch stays out of this one."""
    import json
    import subprocess
    import sys

    command = [sys.executable, "-m", "daemons.engine.bench"]
    command += [f"--{name}={value}" for name, value in asked.items()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        what, _, hint = done.stderr.strip().rpartition("\n")
        what = what.rpartition("\n")[2] or hint
        raise CommandError(what, hint.removeprefix("hint: "))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _head(document: dict[str, Any]) -> list[tuple[str, str]]:
    limits, settings = document["limits"], document["settings"]
    rounded = "" if settings["weights"] == "auto" else f", weights in {settings['weights']},"
    said = (
        f"{document['model']} in {settings['dtype']}{rounded} on {settings['device']}, "
        f"{settings['threads']} threads; this host reads {limits['read_bytes_per_s'] / 1e9:.1f} "
        f"GB/s and computes {limits['flops_per_s'] / 1e9:.0f} GFLOP/s"
    )
    least = document["overhead"][0]
    added = (
        f"beside the model a step of {least['rooms']} takes {least['added_s'] * 1e6:.0f} us, "
        f"{least['share']:.1%}"
    )
    return [(said, ""), (added, "")]


def _decode_row(row: dict[str, Any]) -> list[str]:
    return [
        "decode",
        str(row["rooms"]),
        str(row["context"]),
        f"{row['step_s'] * 1e3:.1f} ms",
        f"{row['tokens_per_s']:.0f}",
        f"{row['read_share']:.0%}",
        f"{row['flop_share']:.0%}",
    ]


def _prefill_row(row: dict[str, Any]) -> list[str]:
    return [
        "prefill",
        "1",
        str(row["tokens"]),
        f"{row['prompt_s'] * 1e3:.1f} ms",
        f"{row['tokens_per_s']:.0f}",
        "-",
        f"{row['flop_share']:.0%}",
    ]
