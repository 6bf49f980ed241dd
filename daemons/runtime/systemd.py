"""What a service and systemd say to each other: readiness, status, watchdog, open sockets.

Standard library only; without systemd every call is a no-op.
Source: the manual pages sd_notify(3) and sd_listen_fds(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

FIRST_FD = 3  # SD_LISTEN_FDS_START


def notify(*assignments: str, environ: MutableMapping[str, str] = os.environ) -> bool:
    """Send ``READY=1``, ``STATUS=...``, ``STOPPING=1``, ``WATCHDOG=1`` and the like.

    Returns whether a service manager listens and took it; never raises, never blocks.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@") or not assignments:
        return False
    if address.startswith("@"):  # abstract namespace
        address = "\0" + address[1:]
    message = "\n".join(assignments).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.setblocking(False)
        try:
            return channel.sendto(message, address) == len(message)
        except OSError:
            return False


def watchdog_period_s(environ: MutableMapping[str, str] = os.environ) -> float | None:
    """Return how often ``WATCHDOG=1`` is due (half of the limit), None when nobody watches."""
    try:
        limit_us = int(environ.get("WATCHDOG_USEC", ""))
        pid = int(environ.get("WATCHDOG_PID", "") or os.getpid())
    except ValueError:
        return None
    return limit_us / 2e6 if limit_us > 0 and pid == os.getpid() else None


def listen_fds(
    environ: MutableMapping[str, str] = os.environ, *, first_fd: int = FIRST_FD
) -> list[socket.socket]:
    """Take over the sockets of a socket unit, in the unit's order; [] when there are none.

    The environment names them once only, so that a child does not take them for its own.
    """
    pid, count = environ.get("LISTEN_PID", ""), environ.get("LISTEN_FDS", "")
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environ.pop(name, None)
    sockets = []
    for fd in range(first_fd, first_fd + int(count)):
        os.set_inheritable(fd, False)
        taken = socket.socket(fileno=fd)
        taken.setblocking(False)
        sockets.append(taken)
    return sockets
