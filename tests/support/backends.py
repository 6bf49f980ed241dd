"""The transfer backends that tests go over: all of ours, and Mooncake where RDMA is wanted.

A name is a backend's, backend/protocol, backend/plain: then its memory is nobody's to map,
cma/numpy: then it has no compiled copier, or backend/inside: then its peer lies in this process.
``pytest --backend NAME`` puts another's in place of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from daemons.cluster.errors import OperatorError
from daemons.kv.shareable import shareable
from daemons.transfer.backend import TransferBackend
from daemons.transfer.cma import Cma
from daemons.transfer.config import TransferConfig
from daemons.transfer.native.build import COPIER
from daemons.transfer.native.mover import mover
from daemons.transfer.registry import OURS, create

BETWEEN: tuple[str, ...] = (
    *(name for name in OURS if name != "loopback"),
    "cma/plain",
    "cma/numpy",
    "mooncake/rdma",
    "nixl/tcp",
)  # two processes
EVERY: tuple[str, ...] = ("loopback", *BETWEEN)
NEEDS = {"nixl": "nixl", "nixl/tcp": "nixl", "mooncake/rdma": "rdma"}  # a marker


def only(name: str) -> None:
    """Go over this one in place of ours, which may come from outside; before tests are found."""
    global BETWEEN, EVERY
    EVERY = (name,)
    BETWEEN = () if is_inside(name) else EVERY


def is_inside(name: str) -> bool:
    """Say whether both sides must be in one process."""
    return name == "loopback" or name.endswith("/inside")


def config_of(name: str, write_timeout_s: float) -> TransferConfig:
    """Return the settings of one of ``EVERY``."""
    backend, _, protocol = name.partition("/")
    return TransferConfig(
        backend=backend,
        protocol=protocol if protocol in ("tcp", "rdma") else "auto",  # type: ignore[arg-type]
        write_timeout_s=write_timeout_s,
    )


def backend_of(name: str, write_timeout_s: float, host: str = "127.0.0.1") -> TransferBackend:
    """Make one of ``EVERY``, with the copier of the sources as they are now, where it is wanted."""
    if mover() is None:
        with suppress(OperatorError):
            COPIER.build()
        mover.cache_clear()
    backend = create(config_of(name, write_timeout_s), host)
    if name == "cma/numpy":
        assert isinstance(backend, Cma)
        backend._mover = None
    return backend


def memory_of(name: str, length: int) -> Any:
    """Return zeroed bytes, as an engine's pool has them."""
    import numpy as np

    if name.endswith("/plain"):
        return np.zeros(length, dtype=np.uint8)
    return np.frombuffer(shareable(length), dtype=np.uint8)


def marked(names: Iterable[str]) -> list[Any]:
    """Return names as parameters, with the markers of what they need."""
    import pytest  # not for the peers, which are many

    return [
        pytest.param(name, marks=getattr(pytest.mark, NEEDS[name])) if name in NEEDS else name
        for name in names
    ]
