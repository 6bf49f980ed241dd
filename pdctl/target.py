"""Which cluster a verb is about: the file, where its name came from, and this host in it.

The order: ``--config``, then ``/etc/pd/cluster.yaml``, then the one cluster that is up on this
host, then the packaged example.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daemons.cluster.load import ClusterFile, load
from daemons.cluster.model import Cluster
from pdctl.errors import CommandError, Exit
from pdctl.runs import runs
from pdctl.share import example_config

SYSTEM_FILE = Path("/etc/pd/cluster.yaml")


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster file that was found and read."""

    file: ClusterFile
    origin: str  # why this file, in words

    @property
    def cluster(self) -> Cluster:
        """What the file says."""
        return self.file.cluster


def find(config: Path | None, *, system_file: Path = SYSTEM_FILE) -> Target:
    """Return the cluster that a verb is about.

    Raises:
        OperatorError: the file cannot be read or is no cluster file.
        CommandError: several clusters are up here and none was named.
    """
    if config is not None:
        return Target(load(config), "--config")
    if system_file.exists():
        return Target(load(system_file), str(system_file))
    up = [run for run in runs() if run.is_up]
    if len(up) > 1:
        raise CommandError(
            f"several clusters are up here: {', '.join(run.cluster for run in up)}",
            "--config says which is meant",
            code=Exit.USAGE,
        )
    if up:
        return Target(load(Path(up[0].config)), "the cluster that is up here")
    return Target(load(example_config()), "the packaged example")


def this_host(cluster: Cluster, named: str | None) -> str:
    """Return which of the file's hosts this machine is.

    ``named`` wins; the only host of a file is this one; otherwise the host's name decides, then
    the one address that is ours.

    Raises:
        CommandError: no host of that name, or it cannot be told.
    """
    if named is not None:
        if named not in cluster.hosts:
            raise CommandError(
                f"no host {named} in the cluster file",
                f"it has: {', '.join(cluster.hosts)}",
                code=Exit.NOT_FOUND,
            )
        return named
    if len(cluster.hosts) == 1:
        return next(iter(cluster.hosts))
    names = {socket.gethostname(), socket.gethostname().split(".")[0]}
    candidates = [name for name in cluster.hosts if name in names] or _ours(cluster)
    if len(candidates) != 1:
        raise CommandError(
            f"cannot tell which host of the file this is: {', '.join(cluster.hosts)}",
            "--host names it",
            code=Exit.USAGE,
        )
    return candidates[0]


def _ours(cluster: Cluster) -> Sequence[str]:
    return [name for name, host in cluster.hosts.items() if _is_ours(host.address)]


def _is_ours(address: str) -> bool:
    """Say whether an address belongs to this machine: only then is it its own way to itself.

    Nothing is sent. (Binding to it would not tell: with ip_nonlocal_bind any address can be.)
    """
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, proto, _, sockaddr in found:
        with socket.socket(family, kind, proto) as probe:
            try:
                probe.connect((sockaddr[0], 9, *sockaddr[2:]))
            except OSError:
                continue
            if probe.getsockname()[0] == sockaddr[0]:
                return True
    return False
