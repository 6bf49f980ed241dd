"""Settings of a front, as the shells of pd-prefill and pd-decode hand them over."""

from __future__ import annotations

from typing import Annotated

import msgspec

from daemons.cluster.key import ClusterKey
from daemons.cluster.load import ClusterFile
from daemons.cluster.worker import Timers
from daemons.protocol.ids import Epoch, InstanceName, Port
from daemons.protocol.topology import Role
from daemons.runtime.epoch import new_epoch


class FrontConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a front must know; the ranks get theirs by ``rank_argv``."""

    instance: InstanceName
    role: Role  # PREFILL or DECODE
    model_dir: str  # tokenizer and configuration of the model; no weights are read here
    model_name: str  # as clients call it
    bootstrap_url: str  # base URL of the phone book
    bootstrap_host: str  # the only phone book that a client's body may name, but for aliases
    bootstrap_port: Port
    rank_argv: tuple[tuple[str, ...], ...]  # starts each rank; "--link ipc://..." is appended
    bootstrap_aliases: frozenset[tuple[str, int]] = frozenset()  # names of the same phone book
    host_addresses: dict[str, str] = {}  # of the cluster file's hosts, by name
    bind: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, lt=65536)] = 0  # 0: any free one, then that one
    advertise: str = "127.0.0.1"  # the address that others are told
    timers: Timers = Timers()
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 32 << 20  # of one HTTP request
    max_prompt_items: Annotated[int, msgspec.Meta(ge=1)] = 256  # prompts of one request
    epoch: Epoch = msgspec.field(default_factory=new_epoch)  # of this life; ranks must share it
    key: ClusterKey | None = None  # of the cluster
    guard_metrics: bool = False  # /metrics wants the token too
    local_prefill: bool = False  # a decode may compute prompts by itself
    tool_calls: str = "auto"  # how the model writes them: auto, none, hermes, llama3
    reasoning: str = "auto"  # thoughts told apart from the answer: auto, none, think
    chaos: bool = False  # faults may be put in on purpose
    file: ClusterFile | None = None  # read again on SIGHUP
    config_hash: str = ""  # of the cluster file, to compare hosts by
    version: str = ""  # of the software
