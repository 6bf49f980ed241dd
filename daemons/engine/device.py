"""Where tensors live and in which type: one value that every part of the engine is given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from daemons.cluster.errors import OperatorError
from daemons.engine.config import EngineConfig

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
KV_DTYPES = {**DTYPES, "fp8_e4m3": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class Place:
    """A device and the type of weights and activations, or of KV, on it."""

    device: torch.device
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """The type as the configuration and the fingerprint spell it."""
        return next(name for name, dtype in KV_DTYPES.items() if dtype is self.dtype)

    @property
    def is_cpu(self) -> bool:
        """Whether tensors are plain memory."""
        return self.device.type == "cpu"


def choose_place(config: EngineConfig) -> Place:
    """Return the place that the configuration asks for, ``auto`` resolved by what is there.

    Raises:
        OperatorError: CUDA is asked for, and there is none.
    """
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise OperatorError(
            "engine.device is cuda, and torch sees no CUDA device", "set it to auto"
        )
    device = "cuda" if has_cuda and config.device != "cpu" else "cpu"
    dtype = config.dtype if config.dtype != "auto" else ("bf16" if device == "cuda" else "fp32")
    return Place(torch.device(device), DTYPES[dtype])


def kv_place(config: EngineConfig, place: Place) -> Place:
    """Return where and in which type keys and values are kept.

    Raises:
        OperatorError: a type that attention cannot read here.
    """
    if config.kv_dtype == "auto":
        return place
    if place.is_cpu or place.dtype is not torch.bfloat16:
        raise OperatorError(
            f"engine.kv_dtype is {config.kv_dtype}, on {place.device.type} in {place.dtype_name}",
            "it is for CUDA with engine.dtype bf16; set it to auto",
        )
    return replace(place, dtype=KV_DTYPES[config.kv_dtype])


def set_threads(threads: int) -> None:
    """Set how many threads torch uses for one operation; 0 leaves torch's own choice."""
    if threads > 0:
        torch.set_num_threads(threads)


def bind(cores: Sequence[int]) -> None:
    """Keep this thread, and those that it will start, on some cores; none: leave them alone.

    Raises:
        OperatorError: this process may not run there.
    """
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise OperatorError(
            f"engine.cores: cannot run on {', '.join(map(str, cores))}: {error.strerror}",
            f"this process may use {sorted(os.sched_getaffinity(0))}",
        ) from error
