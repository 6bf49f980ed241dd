"""Where a model lies: the embedded one in the user's cache, any other in a directory of its own.

This module imports no torch, so that pdctl and the fronts can ask too.
"""

from __future__ import annotations

import os
from pathlib import Path

from daemons.cluster.errors import OperatorError
from daemons.cluster.model import DEFAULT_MODEL

EMBEDDED = (DEFAULT_MODEL,)


def model_directory(name_or_path: str) -> Path:
    """Return the directory of a model: the embedded model's name, or a Hugging Face directory.

    Raises:
        OperatorError: an unknown name, no such directory, the embedded model is not converted
            yet, or a file that every model needs is missing.
    """
    if name_or_path in EMBEDDED:
        directory = embedded_directory(name_or_path)
        hint = "scripts/install makes it; by hand: python -m daemons.engine.embedded"
        if not directory.is_dir():
            raise OperatorError(f"the embedded model {name_or_path} is not in {directory}", hint)
    else:
        directory = Path(name_or_path).expanduser()
        hint = f"model: is {', '.join(EMBEDDED)} or the path of a Hugging Face directory"
        if not directory.is_dir():
            raise OperatorError(f"no model {name_or_path}: there is no such directory", hint)
    absent = _missing(directory)
    if absent:
        raise OperatorError(f"{directory} is no model directory: it lacks {absent}", hint)
    return directory.resolve()


def embedded_directory(name: str) -> Path:
    """Return where the embedded model lies, or will lie, in the user's cache folder."""
    return cache_directory() / "models" / name


def cache_directory() -> Path:
    """Return our folder in the user's cache: ``$XDG_CACHE_HOME/pd``, by default ``~/.cache/pd``."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a path that is not absolute is to be ignored.
    root = Path(cache) if cache and Path(cache).is_absolute() else Path.home() / ".cache"
    return root / "pd"


def _missing(directory: Path) -> str:
    wanted = [
        name for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()
    ]
    if not any(directory.glob("*.safetensors")):
        wanted.append("*.safetensors")
    return ", ".join(wanted)
