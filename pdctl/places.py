"""Where each daemon of the cluster file is: host and port, the phone book's word for port 0."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from daemons.bootstrap.config import BootstrapConfig
from daemons.cluster.key import ClusterKey, load_key
from daemons.cluster.load import address_of, instance_names, read_settings, role_of
from daemons.cluster.model import Cluster
from daemons.decode.config import DecodeConfig
from daemons.lb.config import LbConfig
from daemons.prefill.config import PrefillConfig
from daemons.protocol.topology import InstanceInfo, Role
from pdctl.client import base_url

WORKERS = (Role.PREFILL, Role.DECODE)
FORMS: dict[Role, type[Any]] = {
    Role.BOOTSTRAP: BootstrapConfig,
    Role.PREFILL: PrefillConfig,
    Role.DECODE: DecodeConfig,
    Role.LB: LbConfig,
}


@dataclass(frozen=True, slots=True)
class Place:
    """A daemon and the address of its HTTP face."""

    instance: str
    role: Role
    host: str  # its name in the cluster file
    address: str
    port: int  # 0: chosen at its start, only the phone book knows
    key: ClusterKey | None = field(default=None, repr=False)  # of its cluster

    @property
    def url(self) -> str:
        """Base URL, "" while the port is unknown."""
        return base_url(self.address, self.port) if self.port else ""

    @property
    def token(self) -> str | None:
        """The token that it asks for, None where the cluster has no key."""
        return self.key.token(self.role) if self.key else None

    @property
    def where(self) -> str:
        """Address and port for people."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port or '?'}"


def settings(cluster: Cluster, instance: str) -> Any:
    """Return the checked settings of one daemon; raises OperatorError."""
    return read_settings(cluster, instance, FORMS[role_of(cluster, instance)])


def places(cluster: Cluster) -> dict[str, Place]:
    """Return every daemon of the file, in starting order; raises OperatorError."""
    key = load_key(cluster)
    return {name: _place(cluster, name, key) for name in instance_names(cluster)}


def with_phone_book(known: dict[str, Place], instances: Iterable[InstanceInfo]) -> dict[str, Place]:
    """Return places with the ports that the phone book knows; it is the truth about port 0.

    Instances that are in the phone book only (started from another file) are added.
    """
    merged = dict(known)
    key = next((place.key for place in known.values()), None)
    for info in instances:
        place = known.get(info.instance)
        if place is None:
            merged[info.instance] = Place(
                info.instance, info.role, "?", info.http_host, info.http_port, key
            )
        elif not place.port:
            merged[info.instance] = replace(place, address=info.http_host, port=info.http_port)
    return merged


def _place(cluster: Cluster, instance: str, key: ClusterKey | None) -> Place:
    own = settings(cluster, instance)
    address = own.advertise or address_of(cluster, own.host)
    return Place(instance, role_of(cluster, instance), own.host, address, own.port, key)
