"""The header of a GGUF file: facts by name, and where each tensor lies.

Read here and not by the package ``gguf``, which takes many seconds for a large vocabulary.

Source: the format, version 2 and 3, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemons.cluster.errors import OperatorError

MAGIC = b"GGUF"
VERSIONS = (2, 3)

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies.

    Attributes:
        shape: slowest dimension first, as numpy has it.
        kind: ggml's number of the type, quantised or not.
        offset: of its first byte in the file.
    """

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """What comes before the weights."""

    facts: dict[str, Any]
    tensors: dict[str, Stored]

    @property
    def architecture(self) -> str:
        """In ggml's words, as ``llama``."""
        return str(self.facts["general.architecture"])

    def own(self, name: str, default: Any = None) -> Any:
        """Return a fact whose name begins with the architecture."""
        return self.facts.get(f"{self.architecture}.{name}", default)


def read_header(path: Path) -> Header:
    """Return the header of a GGUF file.

    Raises:
        OperatorError: no such file, or not one of a version that is read.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(data)
    except (OSError, ValueError, KeyError, IndexError, struct.error) as error:
        raise OperatorError(f"cannot read {path}: {error}", "is it a whole GGUF file?") from error


def _parse(data: mmap.mmap) -> Header:
    cursor = _Cursor(data)
    if data[:4] != MAGIC:
        raise ValueError("it does not begin with GGUF")
    cursor.at = 4
    version = cursor.scalar("I")
    if version not in VERSIONS:
        raise ValueError(f"version {version}, read are {VERSIONS}")
    tensors, facts = cursor.scalar("Q"), cursor.scalar("Q")
    known = {}
    for _ in range(facts):
        name = cursor.string()
        known[name] = cursor.value(cursor.scalar("I"))
    found = {}
    for _ in range(tensors):
        name = cursor.string()
        shape = tuple(cursor.scalar("Q") for _ in range(cursor.scalar("I")))
        found[name] = (shape[::-1], cursor.scalar("I"), cursor.scalar("Q"))
    alignment = known.get("general.alignment", _ALIGNMENT)
    start = -(-cursor.at // alignment) * alignment
    return Header(known, {n: Stored(s, k, start + o) for n, (s, k, o) in found.items()})


@dataclass(slots=True)
class _Cursor:
    data: mmap.mmap
    at: int = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        size = self.scalar("Q")
        if self.at + size > len(self.data):
            raise ValueError("it ends within a word")
        text = self.data[self.at : self.at + size]
        self.at += size
        return text.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        kind, size = self.scalar("I"), self.scalar("Q")
        if kind in (_STRING, _ARRAY):
            return [self.value(kind) for _ in range(size)]
        code = f"<{size}{_SCALARS[kind]}"
        values = struct.unpack_from(code, self.data, self.at)
        self.at += struct.calcsize(code)
        return list(values)
