"""Where tests of the engine run: on the CPU always, on a CUDA device under the marker ``gpu``.

``pytest -m gpu --device cpu`` lets the CPU stand in for the device: that shows nothing of CUDA, but
that the tests themselves are sound. A test that only CUDA can run is then left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:  # imported by every run's conftest: torch is not for tests of pdctl
    import torch

Where = Literal["cpu", "gpu"]  # as tests are parametrised
GPU_IS: Literal["cuda", "cpu"] = "cuda"  # pytest --device sets it

ON_GPU = pytest.param("gpu", marks=pytest.mark.gpu)
EACH_DEVICE = pytest.mark.parametrize("where", ["cpu", ON_GPU])


def device_name(where: Where) -> Literal["cuda", "cpu"]:
    """Return what the engine's configuration calls a device of the tests."""
    return GPU_IS if where == "gpu" else "cpu"


def device(where: Where) -> torch.device:
    """Return a device of the tests as torch knows it."""
    import torch

    return torch.device(device_name(where))


def has_cuda() -> bool:
    """Say whether torch sees a device."""
    import torch

    return torch.cuda.is_available()


def each_cell(cells: Iterable[Sequence[Any]], on_gpu: Iterable[Sequence[Any]]) -> list[Any]:
    """Return parameter sets with ``where`` behind: all cells on the CPU, some on the device too."""
    return [
        *(pytest.param(*cell, "cpu") for cell in cells),
        *(pytest.param(*cell, "gpu", marks=pytest.mark.gpu) for cell in on_gpu),
    ]
