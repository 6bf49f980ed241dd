"""Read a checkpoint: safetensors files, memory-mapped, one or many with an index.

A tensor that is taken is a copy in the wanted type on the wanted device, so the files may change
or go once the model is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from daemons.cluster.errors import OperatorError
from daemons.engine.device import Place

INDEX = "model.safetensors.index.json"
_SAMPLES = 8  # places in a tensor whose bytes go into the digest
_SAMPLE_BYTES = 64
_DIGEST_DIGITS = 16


class Checkpoint:
    """The tensors of a model directory, by name."""

    def __init__(self, directory: Path, place: Place) -> None:
        """Open the files; reads only their headers.

        Raises:
            OperatorError: no safetensors file, or one that cannot be read.
        """
        self._directory = directory
        self._place = place
        self._files: dict[str, Any] = {}  # tensor name -> open file
        for path in _paths(directory):
            try:
                file = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise OperatorError(f"cannot read {path}: {error}", "is it complete?") from error
            names: list[str] = file.keys()  # type: ignore[no-untyped-call]
            self._files.update((name, file) for name in names)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(
        self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return a tensor of this name and shape, in the place's type unless another is given.

        Raises:
            OperatorError: there is none, or it has another shape.
        """
        tensor = self._read(name)
        if list(tensor.shape) != list(shape):
            raise OperatorError(
                f"{self._directory}: {name} has shape {list(tensor.shape)},"
                f" config.json makes it {list(shape)}"
            )
        return tensor.to(self._place.device, dtype or self._place.dtype, copy=True)

    def take_rows(self, names: Sequence[str], rows: Sequence[int], *rest: int) -> torch.Tensor:
        """Return tensors of ``[rows[i], *rest]`` as one, below each other."""
        return torch.cat([self.take(n, (r, *rest)) for n, r in zip(names, rows, strict=True)])

    def digest(self, facts: bytes) -> str:
        """Return a hash over ``facts`` and the names, shapes, types and a sample of the tensors.

        Returns:
            16 hexadecimal digits; equal for equal models, however many files they lie in.
        """
        hashed = hashlib.sha256(facts)
        for name in sorted(self._files):
            tensor = self._read(name)
            hashed.update(f"{name} {list(tensor.shape)} {tensor.dtype}\n".encode())
            flat = tensor.reshape(-1).view(torch.uint8)
            step = max(1, len(flat) // _SAMPLES)
            for start in range(0, len(flat), step):
                hashed.update(flat[start : start + _SAMPLE_BYTES].numpy().tobytes())
        return hashed.hexdigest()[:_DIGEST_DIGITS]

    def _read(self, name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._files[name].get_tensor(name)
        except KeyError:
            raise OperatorError(f"{self._directory}: the weights lack {name}") from None
        return tensor


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


def _paths(directory: Path) -> list[Path]:
    index = directory / INDEX
    if index.exists():
        shards = read_json(index).get("weight_map", {})
        return [directory / name for name in sorted(set(shards.values()))]
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise OperatorError(f"{directory} has no *.safetensors file")
    return paths
