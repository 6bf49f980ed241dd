"""Ports for daemons that need to know theirs before they bind it, each given to one caller only.

Between the choice and the bind lie seconds, in which other tests of this host bind and connect. So
these ports are neither among those that the kernel gives by itself (32768 and up) nor among
Mooncake's (15000 to 17000), and a port that was given stays its caller's while this process lives:
a name of an abstract socket, which one process of a host can hold, says so.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

FIRST, END = 18000, 32000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
HELD: list[socket.socket] = []


def free_port(address: str = "127.0.0.1") -> int:
    """Return a TCP port of an address where nobody listens, for as long as this process lives."""
    while True:
        port = drawn()
        if take(port) and _is_bindable(address, port):
            return port


def drawn() -> int:
    """Draw one of these ports."""
    given_by_kernel, _ = map(int, RANGE.read_text().split())
    draw = random.SystemRandom()  # a test may have set the seed of the other
    return draw.randrange(FIRST, min(END, given_by_kernel))


def take(port: int) -> bool:
    """Make a port ours while this process lives; False where it was somebody's, or ours."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0pd-test-port-{port}")
    except OSError:
        name.close()
        return False
    HELD.append(name)
    return True


def _is_bindable(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True
