"""Settings of a pd-prefill instance: its section ``prefill.<name>`` of the cluster file."""

from __future__ import annotations

from typing import Annotated

import msgspec

from daemons.cluster.model import DEFAULT_HOST
from daemons.cluster.worker import Placement, Seconds, Timers
from daemons.engine.config import EngineConfig
from daemons.transfer.config import TransferConfig


class PrefillConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pd-prefill; every field may stand in the cluster file."""

    host: str = DEFAULT_HOST  # on which of the file's hosts it runs
    bind: str = ""  # address to listen on; "": the host's address
    port: Annotated[int, msgspec.Meta(ge=0, lt=65536)] = 0  # HTTP; 0: any, the phone book knows
    advertise: str = ""  # address told to others; "": the host's address
    max_rooms: Annotated[int, msgspec.Meta(ge=1)] = 1024  # more are refused with 503
    max_orphans: Annotated[int, msgspec.Meta(ge=1)] = 4096  # destinations that no request claims
    rows: Annotated[int, msgspec.Meta(ge=1)] = 128  # rooms between their forward and their end
    prefix_cache: bool = True  # prompts that begin like earlier ones are computed from there on
    ageing_s: Seconds = 5.0  # waiting for so long is worth one point of priority
    placement: Placement = Placement()
    engine: EngineConfig = EngineConfig()
    transfer: TransferConfig = TransferConfig()
    timers: Timers = Timers()
