"""How Mooncake is told what to do, and its import, which must come after that.

Mooncake reads its settings from the environment, once per process, when it is first used. So
they are set here, in one place, and a second set of settings in the same process is refused.

Rules, each from a measurement of 0.3.13.post1:
- ``MC_LOG_DIR`` aborts the process at import; it is removed.
- Default queues (1024) fail larger batches, and may leave a peer unreachable for good.
- The caller's timeout (``MC_TRANSFER_TIMEOUT``) only stops the waiting, not the writing; the
  progress timeout closes the connection. So the second is ours and the first stays out of reach.
- ``MC_TE_METADATA_REFRESH_INTERVAL_SECONDS`` stays unset: its thread waits 60 s for a frozen
  peer, and the engine's end waits for the thread with the interpreter lock held. A fresh engine
  after every failure does what the refresh would do.
"""

from __future__ import annotations

import importlib
import math
import os
import socket
import sys
from collections.abc import Mapping
from threading import Lock
from typing import Any

from daemons.cluster.errors import OperatorError
from daemons.transfer.config import TransferConfig

REMOVED = ("MC_LOG_DIR", "MC_TE_METADATA_REFRESH_INTERVAL_SECONDS", "MC_TCP_PROTO")
PORTS = range(15000, 17001)  # Mooncake's own default, for its two listening sockets
LIBRARIES = {  # Debian and Ubuntu names; the wheel brings everything else
    "libibverbs.so.1": "libibverbs1",
    "libnuma.so.1": "libnuma1",
    "libcurl.so.4": "libcurl4",
    "libmlx5.so.1": "ibverbs-providers",
}

_lock = Lock()
_applied: dict[str, str] = {}


def settings(config: TransferConfig, *, ipv6: bool) -> dict[str, str]:
    """Return the environment that ``config`` means; an empty value means unset."""
    timeout_s = math.ceil(config.write_timeout_s)  # whole seconds only
    return {
        "MC_FORCE_TCP": "1" if config.protocol == "tcp" else "",
        "MC_USE_IPV6": "1" if ipv6 else "",
        "MC_LOG_LEVEL": "ERROR",
        "MC_MIN_RPC_PORT": str(PORTS.start),
        "MC_MAX_RPC_PORT": str(PORTS.stop - 1),
        "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
        "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER": "65535",
        "MC_TCP_ADMISSION_TIMEOUT_MS": "60000",
        "MC_TCP_PROGRESS_TIMEOUT_SEC": str(timeout_s),
        "MC_TCP_STATUS_TIMEOUT_SEC": str(timeout_s),
        "MC_HANDSHAKE_CONNECT_TIMEOUT": str(timeout_s),
        "MC_TRANSFER_TIMEOUT": str(10 * timeout_s),
    }


def needs_ipv6(host: str) -> bool:
    """Tell whether ``host`` is reached over IPv6 only; Mooncake speaks one family per process.

    Raises:
        OperatorError: no such host.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OperatorError(
            f"transfer host {host!r} has no address: {error}", "use an IP address"
        ) from error
    return all(family == socket.AF_INET6 for family, *_ in found)


def load(config: TransferConfig, host: str) -> Any:
    """Set the environment, import ``mooncake.engine`` and return the module.

    Raises:
        OperatorError: other settings are in force, or the wheel or a library is missing.
    """
    with _lock:
        _apply(settings(config, ipv6=needs_ipv6(host)))
        try:
            return importlib.import_module("mooncake.engine")
        except ImportError as error:
            raise _missing(error) from error


def _apply(wanted: Mapping[str, str]) -> None:
    if _applied == wanted:
        return
    if _applied or "mooncake.engine" in sys.modules:
        changed = [f"{k}={v!r}" for k, v in wanted.items() if _applied.get(k) != v]
        raise OperatorError(
            f"Mooncake already runs in this process with other settings ({', '.join(changed)})",
            "one process has one transfer configuration",
        )
    for name in REMOVED:
        os.environ.pop(name, None)
    for name, value in wanted.items():
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
    _applied.update(wanted)


def _missing(error: ImportError) -> OperatorError:
    text = str(error)
    for library, package in LIBRARIES.items():
        if library in text:
            return OperatorError(
                f"Mooncake needs {library}",
                f"apt-get install {package} (all of them: libibverbs1 libnuma1 libcurl4)",
            )
    if "libcuda" in text:
        return OperatorError(
            f"this Mooncake wheel is built for CUDA: {text}",
            "without a GPU install the extra 'cpu' (mooncake-transfer-engine-non-cuda) instead",
        )
    return OperatorError(
        f"Mooncake does not load: {text}", "install exactly one of the extras cpu, cuda12, cuda13"
    )
