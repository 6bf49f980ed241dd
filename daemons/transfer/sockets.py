"""What this process may do to sockets that a C++ library holds: find them, and set options.

The library does not show its sockets, so they are found in ``/proc/self/fd``. Nothing here
closes one of them or reads from it.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address, ip_address

KNOCK_S = 0.2  # a host that does not answer so soon says nothing
NUDGE_S = 0.005  # how long a hurried listener waits for a connection before it looks around


def addresses(host: str) -> frozenset[str]:
    """Return all numeric addresses of a host; none when it has no name or does not exist."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset(_plain(str(entry[4][0])) for entry in found)


def listening(ports: Collection[int]) -> set[int]:
    """Return which of ``ports`` this process listens on."""
    found = set()
    for number in _numbers():
        with _borrowed(number) as sock:
            if sock is not None and _port_listened(sock) in ports:
                found.add(_port_listened(sock))
    return found


def refuses(session: str) -> bool:
    """Say whether the host of ``host:port`` answers that nobody listens there any more."""
    host, _, port = session.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S):
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False


def hurry(port: int) -> None:
    """Make the thread that accepts on ``port`` look at its stop flag every few milliseconds.

    Mooncake's listener sleeps up to 1 s in accept, and its end waits for that with the
    interpreter lock held; the connection made here ends the sleep that is under way.
    """
    for number in _numbers():
        with _borrowed(number) as sock:
            if sock is not None and _port_listened(sock) == port:
                wait = struct.pack("@ll", 0, int(NUDGE_S * 1e6))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
                home = "::1" if sock.family == socket.AF_INET6 else "127.0.0.1"
                with suppress(OSError):  # without the nudge it only takes longer
                    socket.create_connection((home, port), timeout=1).close()


def reset_on_close(hosts: Collection[str], ports: Collection[int]) -> int:
    """Let our connections to ``ports`` of ``hosts`` drop unsent bytes when they are closed.

    A plain close leaves up to megabytes in the kernel, which go out when a broken link is back,
    long after the write was given up (measured: 11 MB, 7 s later).

    Returns:
        How many connections there are.
    """
    count = 0
    for number in _numbers():
        with _borrowed(number) as sock:
            remote = _remote(sock) if sock is not None else None
            if sock is not None and remote and remote[0] in hosts and remote[1] in ports:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))
                count += 1
    return count


def _numbers() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


@contextmanager
def _borrowed(number: int) -> Iterator[socket.socket | None]:
    """Lend the TCP socket behind a descriptor through a duplicate; None when it is not one."""
    try:
        copy = os.dup(number)
    except OSError:  # closed meanwhile
        yield None
        return
    try:
        sock = socket.socket(fileno=copy)
    except OSError:  # not a socket
        os.close(copy)
        yield None
        return
    with sock:
        tcp = sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6)
        yield sock if tcp else None


def _port_listened(sock: socket.socket) -> int:
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return 0
    return int(sock.getsockname()[1])


def _remote(sock: socket.socket) -> tuple[str, int] | None:
    try:
        host, port, *_ = sock.getpeername()
    except OSError:  # not connected
        return None
    return _plain(host), port


def _plain(host: str) -> str:
    """Return one spelling for an address: no zone, IPv4 where IPv6 only carries it."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(address)
