"""Where a model lies: the embedded one in the user's cache, any other in a directory of its own.

A GGUF file has a directory in the cache, with its configuration and tokenizer and a link to it; it
is made when the file is first asked for. This module imports no torch, so that pdctl and the fronts
can ask too.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from daemons.cluster.errors import OperatorError
from daemons.cluster.model import DEFAULT_MODEL

EMBEDDED = (DEFAULT_MODEL,)
GGUF_FILE = "model.gguf"  # what the link is called
COMPANION_S = 120.0  # to make a GGUF file's directory


def model_directory(name_or_path: str) -> Path:
    """Return the directory of a model: its name, a Hugging Face directory, or a GGUF file.

    Raises:
        OperatorError: an unknown name, no such directory, the embedded model is not converted
            yet, or a file that every model needs is missing.
    """
    if name_or_path in EMBEDDED:
        directory = embedded_directory(name_or_path)
        hint = "scripts/install makes it; by hand: python -m daemons.engine.embedded"
        if not directory.is_dir():
            raise OperatorError(f"the embedded model {name_or_path} is not in {directory}", hint)
    elif name_or_path.endswith(".gguf"):
        return _gguf_directory(Path(name_or_path).expanduser())
    else:
        directory = Path(name_or_path).expanduser()
        hint = f"model: is {', '.join(EMBEDDED)}, a Hugging Face directory or a GGUF file"
        if not directory.is_dir():
            raise OperatorError(f"no model {name_or_path}: there is no such directory", hint)
    absent = _missing(directory)
    if absent:
        raise OperatorError(f"{directory} is no model directory: it lacks {absent}", hint)
    return directory.resolve()


def companion_directory(path: Path) -> Path:
    """Return where a GGUF file's directory lies, or will lie; another when the file changes.

    Raises:
        OperatorError: no such file.
    """
    try:
        facts = path.stat()
    except OSError as error:
        raise OperatorError(f"no model {path}: {error.strerror}") from error
    told = f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns}"
    return (
        cache_directory()
        / "models"
        / f"{path.stem}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    )


def embedded_directory(name: str) -> Path:
    """Return where the embedded model lies, or will lie, in the user's cache folder."""
    return cache_directory() / "models" / name


def cache_directory() -> Path:
    """Return our folder in the user's cache: ``$XDG_CACHE_HOME/pd``, by default ``~/.cache/pd``.

    Raises:
        OperatorError: this user has neither.
    """
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a path that is not absolute is to be ignored.
    if cache and Path(cache).is_absolute():
        return Path(cache) / "pd"
    try:
        return Path.home() / ".cache/pd"
    except RuntimeError as error:
        raise OperatorError(
            f"no place for a cache: user {os.getuid()} has no home directory",
            "XDG_CACHE_HOME=DIRECTORY names one",
        ) from error


def _gguf_directory(path: Path) -> Path:
    directory = companion_directory(path)
    if not directory.is_dir():
        # A process of its own: this module knows neither numpy nor the engine.
        command = [sys.executable, "-m", "daemons.engine.gguf.companion", str(path)]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=COMPANION_S
            )
        except subprocess.TimeoutExpired as error:
            raise OperatorError(f"{path}: not read within {COMPANION_S:.0f} s") from error
        if done.returncode != 0:
            raise _told(path, done.stderr)
    return directory.resolve()


def _told(path: Path, words: str) -> OperatorError:
    last = words.strip().rpartition("\n")[2]
    try:
        told = json.loads(last)
        return OperatorError(told["what"], told["hint"])
    except (ValueError, KeyError, TypeError):
        return OperatorError(f"{path} cannot be read: {last}")


def _missing(directory: Path) -> str:
    wanted = [
        name for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()
    ]
    if not any(directory.glob("*.safetensors")):
        wanted.append("*.safetensors")
    return ", ".join(wanted)
