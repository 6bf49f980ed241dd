"""What a cluster file says: names, hosts, and each daemon's own settings as plain mappings.

The settings of a daemon are checked by that daemon's ``config.py``, which owns their names,
defaults and meanings; here only what all of them share has a type.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from daemons.protocol.ids import InstanceName

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_HOST = "local"

Settings = dict[str, Any]


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine: the address under which the others reach it."""

    address: str = "127.0.0.1"


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cluster file; ``engine``, ``transfer`` and ``timers`` are every worker's defaults."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]  # in logs and folder names
    model: str = DEFAULT_MODEL  # the embedded model's name, or a Hugging Face directory
    chaos: bool = False  # faults may be put in on purpose: for tests and staging, never for users
    key_file: str = ""  # secret of the cluster; relative to this file; "": no key
    guard_metrics: bool = False  # with a key: /metrics of every daemon wants its token too
    tool_calls: Literal["auto", "none", "hermes", "llama3"] = "auto"  # how the model writes them
    reasoning: Literal["auto", "none", "think"] = "auto"  # <think> told apart from the answer
    hosts: dict[str, Host] = msgspec.field(default_factory=lambda: {DEFAULT_HOST: Host()})
    bootstrap: Settings = {}
    lb: Settings = {}
    engine: Settings = {}
    transfer: Settings = {}
    timers: Settings = {}
    prefill: dict[InstanceName, Settings] = {}
    decode: dict[InstanceName, Settings] = {}
