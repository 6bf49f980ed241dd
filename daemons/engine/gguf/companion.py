"""Make what a daemon needs beside a GGUF file: a directory in the cache that points to it.

``python -m daemons.engine.gguf.companion FILE`` does it, which ``daemons.cluster.models`` calls. It
holds ``config.json``, the tokenizer and a link to the file; the weights are read from there. It
appears whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daemons.cluster.errors import OperatorError
from daemons.cluster.models import GGUF_FILE, companion_directory
from daemons.engine.gguf.description import config_of, special_ids
from daemons.engine.gguf.header import read_header
from daemons.engine.gguf.tensors import GgufTensors
from daemons.engine.gguf.words import tokenizer_config_of, tokenizer_of

_BESIDE = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def make_companion(path: Path) -> Path:
    """Return the directory of a GGUF file, made first when it is not there yet.

    Raises:
        OperatorError: the file cannot be read, or is of a model that is not served.
    """
    target = companion_directory(path)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target.parent) as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        write_companion(path, made)
        try:
            os.rename(made, target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster
                raise
    return target


def write_companion(path: Path, directory: Path) -> None:
    """Write the files; what lies beside the GGUF file goes before what it says itself."""
    header = read_header(path)
    beside = {name for name in _BESIDE if (path.parent / name).is_file()}
    try:
        config = config_of(header, rope_divisors=GgufTensors(path).rope_divisors())
        _write_json(directory / "config.json", config)
        _write_json(directory / "generation_config.json", special_ids(header))
        _write_json(directory / "tokenizer_config.json", tokenizer_config_of(header))
        if "tokenizer.json" not in beside:
            tokenizer_of(header).save(str(directory / "tokenizer.json"))
    except KeyError as error:
        raise OperatorError(f"{path}: the header lacks {error}") from error
    for name in beside:
        shutil.copyfile(path.parent / name, directory / name)
    (directory / GGUF_FILE).symlink_to(path.resolve())


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    parser = argparse.ArgumentParser(description="Make a GGUF file ready to be served.")
    parser.add_argument("path", type=Path)
    options = parser.parse_args(arguments)
    try:
        print(make_companion(options.path))
    except OperatorError as error:
        print(json.dumps({"what": error.what, "hint": error.hint}), file=sys.stderr)
        return 1
    except OSError as error:
        print(json.dumps({"what": str(error), "hint": ""}), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
