"""Settings that pd-prefill and pd-decode have in common."""

from __future__ import annotations

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]
Indices = Annotated[str, msgspec.Meta(pattern=r"^(\d+(-\d+)?(,\d+(-\d+)?)*)?\Z")]


class Placement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which parts of the machine an instance gets, from outside: by its unit or by ``pdctl up``."""

    gpus: Indices = ""  # CUDA_VISIBLE_DEVICES, as "0" or "2,3"; "": all
    numa_nodes: Indices = ""  # memory only from these, as "0" or "0-1" (units only); "": any


class Timers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every wait on a peer has its own deadline."""

    handshake_s: Seconds = 10.0  # decode: until prefill is found and knows our buffers
    queue_s: Seconds = 60.0  # waiting for memory (decode) or for a batch (prefill)
    destination_s: Seconds = 60.0  # until the other half of a room comes; so long a lone leg waits
    progress_s: Seconds = 30.0  # no byte moved, or no forward was done, although it is our turn
    total_s: Seconds = 600.0  # a request that names no time of its own
    heartbeat_s: Seconds = 1.0  # between ranks, both ways
    peer_timeout_s: Seconds = 5.0  # no heartbeat for so long: unreachable
    lease_s: Seconds = 10.0  # registration in the phone book, renewed at a third of it
    settle_s: Seconds = 2.0  # after a cut writer: its bytes in our sockets land before this
    tombstone_s: Seconds = 120.0  # how long an ended or never-claimed room is remembered
    notice_s: Seconds = 1.5  # leaving: requests are still taken until pd-lb has heard of it
    drain_s: Seconds = 60.0  # SIGTERM: rooms may finish for so long
