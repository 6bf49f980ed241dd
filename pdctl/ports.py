"""Which of this host's fixed ports somebody else holds; a look ahead, the daemons bind anyway."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from daemons.cluster.load import address_of
from daemons.cluster.model import Cluster
from pdctl.places import places, settings


def listen_address(cluster: Cluster, instance: str) -> str:
    """Return the address that a daemon listens on."""
    own = settings(cluster, instance)
    return own.bind or address_of(cluster, own.host)


def taken(cluster: Cluster, host: str) -> Iterator[tuple[str, str]]:
    """Yield instance and ``address:port`` of every daemon of ``host`` that could not listen."""
    for place in places(cluster).values():
        if place.host != host or not place.port:
            continue
        address = listen_address(cluster, place.instance)
        if not is_free(address, place.port):
            shown = f"[{address}]" if ":" in address else address
            yield place.instance, f"{shown}:{place.port}"


def is_free(address: str, port: int) -> bool:
    """Say whether a socket can listen there; an address that is not ours counts as free."""
    try:
        family, kind, proto, _, sockaddr = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror:
        return True
    with socket.socket(family, kind, proto) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(sockaddr)
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True
