"""C++ of ours, compiled for the machine it runs on and kept in the user's cache.

A result is named by all that it depends on: the sources, the compiler's options, the processor. So
another version never loads an old one, and a cache that several machines share holds one for each.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from daemons.cluster.errors import OperatorError
from daemons.cluster.models import cache_directory

COMPILERS = ("g++", "clang++")
OPTIONS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-pthread")
_DEADLINE_S = 300
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Compiled:
    """A library of ours, whether it is built or not.

    Attributes:
        folder: where its sources are.
        main: the one that includes the others.
        what: what people call it.
        hint: what its absence costs, and what to do.
    """

    folder: Path
    main: str
    what: str
    hint: str

    def path(self) -> Path:
        """Return where it lies for this machine, or would lie.

        Raises:
            OperatorError: the user has no cache.
        """
        return cache_directory() / "native" / f"{self._name()}.so"

    def found(self) -> Path | None:
        """Return where it lies; None where it was not built, or is not ours to read."""
        try:
            path = self.path()
            return path if path.is_file() else None
        except (OSError, OperatorError):
            return None

    def build(self) -> Path:
        """Compile, and return the path; several processes may do so at once.

        Raises:
            OperatorError: no compiler, or one that cannot, or no place for the result.
        """
        compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
        if compiler is None:
            raise OperatorError(f"no {' or '.join(COMPILERS)} to build {self.what}", self.hint)
        path = self.path()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                made = Path(scratch) / path.name
                self._compile(compiler, made)
                _keep(made)
                os.replace(made, path)
        except OSError as error:
            where = f"no place for {self.what} in {path.parent}"
            raise OperatorError(f"{where}: {error.strerror}", self.hint) from error
        return path

    def _compile(self, compiler: str, made: Path) -> None:
        command = [compiler, *OPTIONS, str(self.folder / self.main), "-o", str(made)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OperatorError(f"{compiler}: {error}", self.hint) from error
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            first = next(iter(lines), f"exit code {done.returncode}")
            raise OperatorError(f"{compiler} could not build {self.what}: {first}", self.hint)

    def _name(self) -> str:
        hashed = hashlib.sha256(" ".join(OPTIONS).encode())
        for path in sorted(self.folder.glob("*.h")) + sorted(self.folder.glob("*.cpp")):
            hashed.update(path.read_bytes())
        hashed.update(_processor().encode())
        return hashed.hexdigest()[:_DIGITS]


def build_once(library: Compiled) -> int:
    """Build unless it is done, and say so; 1 when it cannot be, which costs speed only."""
    if library.found():
        return 0
    try:
        print(f"built {library.build()}")
    except OperatorError as error:
        print(f"{error.what}\nhint: {error.hint}", file=sys.stderr)
        return 1
    return 0


def _keep(made: Path) -> None:
    """Have all of it on disk before it gets its name: a library cut short kills who opens it."""
    file = os.open(made, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _processor() -> str:
    """Return what the compiler may make use of, in the kernel's words."""
    words = [platform.machine()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            words += [line for line in lines if line.startswith(("flags", "Features", "model\t"))]
    except OSError:  # no word of what it can do: then this host's library is no other one's
        words.append(platform.node())
    return "\n".join(sorted(set(words)))
