"""What an instance tells the phone book about itself, and what the phone book answers.

The field names of the parallel sizes are SGLang's, so that its tools can read ``GET /route``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from daemons.protocol.ids import Epoch, InstanceName, Port

# 2: frames say whether they are sealed; 3: a request may have a grammar; 4: layers with a window
# have pages of their own
PROTOCOL_VERSION = 4

Size = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=4096)]
LeaseSeconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class Role(StrEnum):
    """The four kinds of daemon."""

    BOOTSTRAP = "bootstrap"
    PREFILL = "prefill"
    DECODE = "decode"
    LB = "lb"


class State(StrEnum):
    """Where an instance is in its life, as told to its users."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"  # its lease ran out; only the phone book says so


class Fingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must be equal on both sides before a pair may exchange pages."""

    model: str  # hash over configuration and weights
    dtype: str
    page_size: Size
    layers: Size
    kv_heads: Size  # of the whole model, over all ranks
    head_dim: Size
    layout: str = "layer-head-page"
    protocol: Annotated[int, msgspec.Meta(ge=1)] = PROTOCOL_VERSION


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parallel sizes of an instance; every rank of it must tell the same."""

    attn_tp_size: Size = 1
    attn_cp_size: Size = 1
    attn_dp_size: Size = 1
    pp_size: Size = 1

    @property
    def ranks(self) -> int:
        """How many rank processes the instance has."""
        return self.attn_tp_size * self.attn_cp_size * self.attn_dp_size * self.pp_size


class Registration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``PUT /route``: one rank of one instance in one life."""

    instance: InstanceName
    role: Role
    epoch: Epoch
    state: State
    http_host: str  # where the instance's HTTP face is reached
    http_port: Port
    lease_s: LeaseSeconds
    version: str  # of the software
    fingerprint: Fingerprint | None = None  # workers only
    shape: Shape = Shape()
    attn_tp_rank: Index = 0
    attn_cp_rank: Index = 0
    attn_dp_rank: Index = 0
    pp_rank: Index = 0
    rank_ip: str = ""  # ZMQ inbox of this rank; workers only
    rank_port: Annotated[int, msgspec.Meta(ge=0, lt=65536)] = 0


class InstanceInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of ``GET /instances``."""

    instance: InstanceName
    role: Role
    epoch: Epoch
    state: State
    http_host: str
    http_port: Port
    version: str
    ranks: int  # registered now
    ranks_expected: int
    lease_left_s: float
    fingerprint: Fingerprint | None = None
    since_s: float = 0.0  # Unix time of this life's first registration


class FleetEvent(msgspec.Struct, frozen=True):
    """One row of ``GET /events`` of the phone book: what happened to an instance, and when."""

    at_s: float  # Unix time
    event: str  # new, replaced, rank, starting, ready, draining, deregistered, refused, lost, …
    instance: str
    role: str = ""  # "" where it is not known any more
    epoch: int = 0
    detail: str = ""


class RankRoute(msgspec.Struct, frozen=True):
    """Answer of ``GET /route`` for one rank: where its ZMQ inbox is, and in which life."""

    rank_ip: str
    rank_port: Port
    instance: InstanceName
    epoch: Epoch


class Topology(msgspec.Struct, frozen=True):
    """Answer of ``GET /topology`` (and of the four -1 sentinels, see the registry)."""

    instance: InstanceName
    epoch: Epoch
    shape: Shape
    fingerprint: Fingerprint
    state: State


def differences(ours: Fingerprint, theirs: Fingerprint) -> list[str]:
    """Return one line per field that differs, with both values; empty when a pair may form."""
    return [
        f"{name}: ours {getattr(ours, name)!r}, theirs {getattr(theirs, name)!r}"
        for name in Fingerprint.__struct_fields__
        if getattr(ours, name) != getattr(theirs, name)
    ]
