"""Settings of the phone book: the ``bootstrap:`` section of the cluster file."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from daemons.cluster.load import PHONE_BOOK_PORT
from daemons.cluster.model import DEFAULT_HOST
from daemons.cluster.worker import Seconds


class BootstrapConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the phone book listens and how long it remembers."""

    host: str = DEFAULT_HOST  # a name under hosts: the machine that runs it
    bind: str = ""  # address to listen on; "": the host's address
    port: Annotated[int, msgspec.Meta(ge=0, lt=65536)] = PHONE_BOOK_PORT
    advertise: str = ""  # address told to others; "": the host's address
    aliases: tuple[str, ...] = ()  # "host:port": other names of it that clients' bodies may use
    forget_s: Seconds = 600.0  # a lost instance is listed for so long
    dp_rank_s: Seconds = 120.0  # a room's data-parallel rank is remembered for so long
    log_level: Literal["debug", "info", "warning", "error"] = "info"
