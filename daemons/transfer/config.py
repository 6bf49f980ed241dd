"""Settings of the transfer; this module imports no backend."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class TransferConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the bytes move."""

    # a name in transfer/registry.py; auto: cma (and shm) to the same host, mooncake to others
    backend: str = "auto"
    protocol: Literal["auto", "tcp", "rdma"] = "auto"  # auto: RDMA where there is a device
    device: str = ""  # RDMA devices, e.g. "mlx5_0"; "": the backend's choice
    # prefill: pages leave when their chunk is computed, or layer by layer while it is
    grain: Literal["layer", "chunk"] = "layer"
    # mooncake: copies to one peer that have begun and are not acknowledged
    batch_copies: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1000
    # prefill: to all decodes together, bytes that have left and are not acknowledged
    in_flight_bytes: Annotated[int, msgspec.Meta(ge=4 << 20)] = 256 << 20
    # prefill: chunks that it sums, for decode to compare; decode: all refuses pages without a sum
    checksum: Literal["off", "sampled", "all"] = "sampled"
    write_timeout_s: Annotated[float, msgspec.Meta(ge=2, le=600)] = 5.0  # no progress: cut
