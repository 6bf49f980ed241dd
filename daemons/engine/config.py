"""Settings of the engine; this module imports no torch, so that pdctl can check a file."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Weights = Literal["auto", "int8", "int4"]

CORES = r"^(auto|\d+(-\d+)?(,\d+(-\d+)?)*)?$"


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one rank runs the model."""

    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: CUDA when there is one
    dtype: Literal["auto", "fp32", "bf16"] = "auto"  # auto: fp32 on CPU, bf16 on CUDA
    weights: Weights = "auto"  # int8, int4: rounded when loaded; auto: as dtype says
    kv_dtype: Literal["auto", "fp8_e4m3"] = "auto"  # auto: as dtype; fp8_e4m3: bf16 on CUDA only
    page_size: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16  # tokens per page
    # Of the KV pool, whose memory is taken at the start; 0: by kv_fraction.
    kv_tokens: Annotated[int, msgspec.Meta(ge=0)] = 16384
    # Of the memory that is free with the weights in it; instances of one host or device add up.
    kv_fraction: Annotated[float, msgspec.Meta(gt=0, le=0.95)] = 0.4
    threads: Annotated[int, msgspec.Meta(ge=0)] = 1  # of a rank; 0: its share of the host's cores
    cores: Annotated[str, msgspec.Meta(pattern=CORES)] = ""  # "0-3,8": only there; auto: its share
    kernels: Literal["auto", "native", "torch"] = "auto"  # auto: native on a CPU, where it is built
    graphs: Literal["auto", "none"] = "auto"  # auto: decode steps on CUDA are recorded and replayed
    batch_tokens: Annotated[int, msgspec.Meta(ge=1)] = 512  # prefill: tokens of one forward
    chunk_tokens: Annotated[int, msgspec.Meta(ge=1)] = 512  # prefill: tokens of one room in it
    batch_rooms: Annotated[int, msgspec.Meta(ge=1)] = 64  # rooms of one forward
    steps_ahead: Annotated[int, msgspec.Meta(ge=0, le=1)] = 1  # decode: steps queued behind one
    max_model_len: Annotated[int, msgspec.Meta(ge=0)] = 0  # 0: what the model was made for
