"""Read a checkpoint: safetensors files, memory-mapped, one or many with an index, or a GGUF file.

A tensor that is taken is a copy in the wanted type on the wanted device, so the files may change
or go once the model is loaded. What was read of a file is given back to the system at once: while
a model is loaded, memory holds its weights once, and one tensor more.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from daemons.cluster.errors import OperatorError
from daemons.cluster.models import GGUF_FILE
from daemons.engine.device import Place

INDEX = "model.safetensors.index.json"
_SAMPLES = 8  # places in a tensor whose bytes go into the digest
_SAMPLE_BYTES = 64
_DIGEST_DIGITS = 16
_DONTNEED = 4  # MADV_DONTNEED


class Source(Protocol):
    """Tensors in files, by the names of Hugging Face."""

    @property
    def names(self) -> Iterable[str]:
        """What is there."""

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor that may lie in the file's memory; KeyError when there is none."""

    def raw(self, name: str) -> tuple[str, np.ndarray]:
        """Return shape and type in words, and the stored bytes where they lie, ``[bytes]``."""

    def forget(self, name: str) -> None:
        """Give back the memory that reading a tensor took."""


class Checkpoint:
    """The tensors of a model directory, by name."""

    def __init__(self, directory: Path, place: Place) -> None:
        """Open the files; reads only their headers.

        Raises:
            OperatorError: no safetensors file, or one that cannot be read.
        """
        self._directory = directory
        self._place = place
        self._source = _source(directory)

    def __contains__(self, name: str) -> bool:
        return name in self._source.names

    def take(
        self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return a tensor of this name and shape, in the place's type unless another is given.

        Raises:
            OperatorError: there is none, or it has another shape.
        """
        into = torch.empty(*shape, dtype=dtype or self._place.dtype, device=self._place.device)
        self._copy(name, into)
        return into

    def take_rows(self, names: Sequence[str], rows: Sequence[int], *rest: int) -> torch.Tensor:
        """Return tensors of ``[rows[i], *rest]`` as one, below each other."""
        whole = torch.empty(sum(rows), *rest, dtype=self._place.dtype, device=self._place.device)
        first = 0
        for name, count in zip(names, rows, strict=True):
            self._copy(name, whole[first : first + count])
            first += count
        return whole

    def digest(self, facts: bytes) -> str:
        """Return a hash over ``facts`` and the names, shapes, types and a sample of the tensors.

        Returns:
            16 hexadecimal digits; equal for equal models, however many files they lie in.
        """
        hashed = hashlib.sha256(facts)
        for name in sorted(self._source.names):
            words, stored = self._source.raw(name)
            hashed.update(f"{name} {words}\n".encode())
            step = max(1, len(stored) // _SAMPLES)
            for start in range(0, len(stored), step):
                hashed.update(stored[start : start + _SAMPLE_BYTES].tobytes())
        return hashed.hexdigest()[:_DIGEST_DIGITS]

    def _copy(self, name: str, into: torch.Tensor) -> None:
        try:
            tensor = self._source.read(name)
        except KeyError:
            raise OperatorError(f"{self._directory}: the weights lack {name}") from None
        if tensor.shape != into.shape:
            raise OperatorError(
                f"{self._directory}: {name} has shape {list(tensor.shape)},"
                f" config.json makes it {list(into.shape)}"
            )
        into.copy_(tensor)
        del tensor
        self._source.forget(name)


class _Safetensors:
    """Memory-mapped safetensors files."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files: dict[str, Any] = {}  # tensor name -> open file
        for path in paths:
            try:
                file = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise OperatorError(f"cannot read {path}: {error}", "is it complete?") from error
            names: list[str] = file.keys()  # type: ignore[no-untyped-call]
            self._files.update((name, file) for name in names)

    @property
    def names(self) -> Iterable[str]:
        return self._files.keys()

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    def raw(self, name: str) -> tuple[str, np.ndarray]:
        tensor = self.read(name)
        return f"{list(tensor.shape)} {tensor.dtype}", tensor.reshape(-1).view(torch.uint8).numpy()

    def forget(self, name: str) -> None:
        tensor = self.read(name)
        forget(tensor.data_ptr(), tensor.nbytes)


def forget(address: int, size_bytes: int) -> None:
    """Give the whole pages of a file's private, unchanged mapping back; they are read anew."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (address + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _DONTNEED)


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Return a JSON object; an absent ``optional`` file is an empty one.

    Raises:
        OperatorError: no such file, or not a JSON object.
    """
    if optional and not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OperatorError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise OperatorError(f"{path} is not a JSON object")
    return content


def _source(directory: Path) -> Source:
    if (directory / GGUF_FILE).exists():
        from daemons.engine.gguf.tensors import GgufTensors

        return GgufTensors(directory / GGUF_FILE)
    return _Safetensors(_paths(directory))


def _paths(directory: Path) -> list[Path]:
    index = directory / INDEX
    if index.exists():
        shards = read_json(index).get("weight_map", {})
        return [directory / name for name in sorted(set(shards.values()))]
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise OperatorError(f"{directory} has no *.safetensors file")
    return paths
