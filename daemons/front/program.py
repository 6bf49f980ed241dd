"""From a worker's settings to a running front."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from daemons.cluster.key import load_key
from daemons.cluster.load import address_of, phone_book_aliases, phone_book_of
from daemons.cluster.models import model_directory
from daemons.cluster.worker import Timers
from daemons.front.config import FrontConfig
from daemons.front.service import run
from daemons.protocol.topology import Role
from daemons.runtime.epoch import new_epoch
from daemons.runtime.http import url_of
from daemons.runtime.program import version
from daemons.runtime.worker import Flags


@dataclass(frozen=True, slots=True)
class Face:
    """The settings of a worker that concern its front."""

    host: str
    bind: str
    port: int
    advertise: str
    timers: Timers
    local_prefill: bool = False


def run_front(flags: Flags, role: Role, face: Face) -> int:
    """Run the front of an instance until it is told to end; returns the exit code."""
    return run(front_config(flags, role, face))


def front_config(flags: Flags, role: Role, face: Face) -> FrontConfig:
    """Return the front's settings; its rank runs the same program with the same epoch.

    Raises:
        OperatorError: the model or a host of the cluster file cannot be found.
    """
    cluster = flags.file.cluster
    epoch = new_epoch()
    book_host, book_port = phone_book_of(cluster)
    address = address_of(cluster, face.host)
    rank = (
        sys.executable,
        "-m",
        f"daemons.{role.value}",
        "--config",
        str(flags.file.path),
        "--instance",
        flags.instance,
        "--epoch",
        str(epoch),
        "--rank",
        "0",
        *flags.handed_on,
    )
    return FrontConfig(
        instance=flags.instance,
        role=role,
        model_dir=str(model_directory(cluster.model)),
        model_name=cluster.model.rstrip("/").rpartition("/")[2],
        bootstrap_url=url_of(book_host, book_port),
        bootstrap_host=book_host,
        bootstrap_port=book_port,
        bootstrap_aliases=phone_book_aliases(cluster),
        host_addresses={name: host.address for name, host in cluster.hosts.items()},
        rank_argv=(rank,),
        bind=face.bind or address,
        port=face.port,
        advertise=face.advertise or address,
        timers=face.timers,
        local_prefill=face.local_prefill,
        epoch=epoch,
        key=load_key(cluster),
        guard_metrics=cluster.guard_metrics,
        tool_calls=cluster.tool_calls,
        reasoning=cluster.reasoning,
        chaos=cluster.chaos,
        file=flags.file,
        config_hash=flags.file.hash,
        version=version(),
    )
