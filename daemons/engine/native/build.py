"""Compile the kernels for the machine they run on, and keep the result in the user's cache.

A result is named by all that it depends on: the sources, the compiler, the processor. So another
version never loads an old one, and a cache that several machines share holds one for each.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from daemons.cluster.errors import OperatorError
from daemons.cluster.models import cache_directory

SOURCES = Path(__file__).parent
COMPILERS = ("g++", "clang++")
OPTIONS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-pthread")
HINT = "without the kernels torch is used, which is slower; with g++ 11 or newer it is built"
_DEADLINE_S = 300
_DIGITS = 16


def library_path() -> Path:
    """Return where the kernels for this machine lie, or would lie."""
    return cache_directory() / "native" / f"{_name()}.so"


def build() -> Path:
    """Compile, and return the path; several processes may do so at once.

    Raises:
        OperatorError: no compiler, or one that cannot.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise OperatorError(f"no {' or '.join(COMPILERS)} to build the kernels", HINT)
    path = library_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        command = [compiler, *OPTIONS, str(SOURCES / "library.cpp"), "-o", str(made)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OperatorError(f"{compiler}: {error}", HINT) from error
        if done.returncode != 0:
            first = next(iter(done.stderr.strip().splitlines()), f"exit code {done.returncode}")
            raise OperatorError(f"{compiler} could not build the kernels: {first}", HINT)
        os.replace(made, path)
    return path


def _name() -> str:
    hashed = hashlib.sha256(" ".join(OPTIONS).encode())
    for path in sorted(SOURCES.glob("*.h")) + sorted(SOURCES.glob("*.cpp")):
        hashed.update(path.read_bytes())
    hashed.update(_processor().encode())
    return hashed.hexdigest()[:_DIGITS]


def _processor() -> str:
    """Return what the compiler may make use of, in the kernel's words."""
    words = [platform.machine()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            words += [line for line in lines if line.startswith(("flags", "Features", "model\t"))]
    except OSError:
        words.append(platform.processor())
    return "\n".join(sorted(set(words)))
