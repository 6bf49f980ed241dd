"""Names of transfer backends, and where their factories are.

A backend's module is imported only when it is chosen, so that a process on loopback needs no
RDMA library. Outsiders add theirs as an entry point of the group ``pd.transfer_backends``; a
name of ours cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from daemons.cluster.errors import OperatorError
from daemons.transfer.backend import TransferBackend
from daemons.transfer.config import TransferConfig

GROUP = "pd.transfer_backends"
OURS = {
    "auto": "daemons.transfer.auto",
    "cma": "daemons.transfer.cma",
    "loopback": "daemons.transfer.loopback",
    "mooncake": "daemons.transfer.mooncake",
    "nixl": "daemons.transfer.nixl",
}

Factory = Callable[[TransferConfig, str], TransferBackend]


def names() -> list[str]:
    """Return every name that ``create`` knows, sorted."""
    return sorted({*OURS, *_outsiders()})


def create(config: TransferConfig, host: str) -> TransferBackend:
    """Make the backend that ``config`` names.

    Args:
        config: ``config.backend`` is the name.
        host: address under which peers reach this process, an IP address or a name.

    Raises:
        OperatorError: unknown name, or the backend cannot run on this machine.
    """
    return _factory(config.backend)(config, host)


def _factory(name: str) -> Factory:
    if name in OURS:
        factory: Factory = import_module(OURS[name]).create
        return factory
    outsider = _outsiders().get(name)
    if outsider is None:
        raise OperatorError(
            f"no transfer backend {name!r}", f"transfer.backend is one of: {', '.join(names())}"
        )
    try:
        factory = outsider.load()
    except (ImportError, AttributeError) as error:
        raise OperatorError(
            f"transfer backend {name!r} does not load from {outsider.value}: {error}",
            "mend or remove the package that provides it",
        ) from error
    return factory


def _outsiders() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
