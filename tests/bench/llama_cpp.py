"""llama.cpp's server beside the engine: built from its source as the registry has it, then asked.

The source is the one inside ``llama-cpp-python``; it is compiled for this very processor. The model
is converted by llama.cpp's own script from the directory that the engine reads. What the server
says of its times is believed; its cache is of its own choice.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bench.cells import CONTEXT, ROOT, Asked, Cells, Lacking, Peer, run

VERSION = "0.3.36"  # of llama-cpp-python
HOME = ROOT / "llama.cpp"
SOURCE = HOME / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
SERVER = HOME / f"build-{VERSION}" / "bin" / "llama-server"
EXTRA = HOME / "python"  # packages that the converter wants beside ours
CONVERTER = ("sentencepiece",)
SAID = 96  # tokens of a decode run
READY_S = 60.0
ASK_S = 300.0
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def version() -> str | None:
    """Return what is installed; None: nothing."""
    return f"llama-cpp-python {VERSION}'s source" if SERVER.exists() else None


def install(threads: int) -> None:
    """Download, unpack, compile; some minutes."""
    for tool in ("cmake", "c++"):
        if shutil.which(tool) is None:
            raise Lacking(f"llama.cpp is built by {tool}, which is not here")
    HOME.mkdir(parents=True, exist_ok=True)
    if not SOURCE.exists():
        # The archive's build description is run by pip even for a download; it is small.
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(HOME)]
        run([*pip, "--no-binary", "llama-cpp-python", f"llama-cpp-python=={VERSION}"])
        with tarfile.open(HOME / f"llama_cpp_python-{VERSION}.tar.gz") as archive:
            archive.extractall(HOME, filter="data")
    run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "-t", str(EXTRA), *CONVERTER])
    build = str(SERVER.parent.parent)
    run(["cmake", "-S", str(SOURCE), "-B", build, *OPTIONS])
    run(["cmake", "--build", build, "--target", "llama-server", "-j", str(threads)])


def converted(model: Path, dtype: str) -> Path:
    """Return the model as GGUF in this type, made once."""
    path = HOME / f"{model.name}-{dtype}.gguf"
    if not path.exists():
        made = path.with_suffix(".part")
        command = [sys.executable, str(SOURCE / "convert_hf_to_gguf.py"), str(model)]
        command += ["--outtype", {"fp32": "f32"}.get(dtype, dtype), "--outfile", str(made)]
        run(["env", f"PYTHONPATH={EXTRA}", *command])
        made.rename(path)
    return path


@contextlib.contextmanager
def serving(asked: Asked, dtype: str) -> Iterator[str]:
    """Start it with a slot for each room; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rooms, longest = max(asked.rooms), max(asked.prompts)
    context = max(rooms * (CONTEXT + SAID + 64), longest + 64)
    command = [str(SERVER), "-m", str(converted(asked.model, dtype)), "--port", str(port)]
    command += ["-t", str(asked.threads), "-tb", str(asked.threads), "-np", str(rooms)]
    command += ["-c", str(context), "--kv-unified", "--no-warmup", "--cache-ram", "0"]
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
                    raise Lacking("llama-server does not answer") from None
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(10)


def complete(address: str, prompt: list[int], tokens: int) -> dict[str, Any]:
    """Return the server's own times of one answer."""
    body = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "cache_prompt": False}
    body |= {"temperature": 0.0, "top_k": 1, "samplers": ["top_k"]}
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ASK_S) as answer:
        timings: dict[str, Any] = json.load(answer)["timings"]
    return timings


def measure(asked: Asked, dtype: str) -> Cells:
    """Return tokens/s of each cell."""
    cells: Cells = {}
    with serving(asked, dtype) as address:
        complete(address, [5] * 32, 4)
        for rooms in asked.rooms:
            with ThreadPoolExecutor(rooms) as pool:
                prompts = [[5 + room] * CONTEXT for room in range(rooms)]
                found = list(pool.map(lambda text: complete(address, text, SAID), prompts))
            # They overlap as far as their prompts let them, which flatters the larger numbers.
            cells[f"decode {rooms}"] = sum(timing["predicted_per_second"] for timing in found)
        for tokens in asked.prompts:
            complete(address, [6] * tokens, 1)
            timing = complete(address, [5] * tokens, 1)
            cells[f"prefill {tokens}"] = timing["prompt_per_second"]
    return cells


PEER = Peer("llama.cpp", version, install, measure)
