"""SIGHUP: the cluster file is read again, and what may change meanwhile does; streams go on.

A file that is wrong changes nothing. What cannot change while a socket listens is told.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from daemons.cluster.errors import OperatorError
from daemons.cluster.load import ClusterFile
from daemons.lb.config import LbConfig
from daemons.lb.keys import ApiKeys, load_api_keys
from daemons.lb.policies import POLICIES
from daemons.lb.retry import Budget
from daemons.lb.service import Service

FIXED = (
    "host", "bind", "port", "advertise", "tls_bind", "tls_port", "tls_cert_file", "tls_key_file",
    "max_connections", "max_body_bytes", "processes", "lease_s", "poll_s", "stale_s", "log_level",
    "breaker_failures", "breaker_rest_s",
)  # fmt: skip


def api_keys_of(file: ClusterFile, config: LbConfig) -> ApiKeys | None:
    """Return the keys that a file names, None when it names none; raises OperatorError."""
    if not config.api_keys_file:
        return None
    return load_api_keys(beside(file, config.api_keys_file))


def beside(file: ClusterFile, name: str) -> Path:
    """Return where a file lies that the cluster file names."""
    return file.path.parent / Path(name).expanduser()


def apply(service: Service, config: LbConfig, keys: ApiKeys | None, random: Random) -> list[str]:
    """Let new settings hold; return the names of those that hold after a restart only."""
    old = service.config
    late = [name for name in FIXED if getattr(old, name) != getattr(config, name)]
    kept = {name: getattr(old, name) for name in FIXED}
    config = msgspec.structs.replace(config, **kept)
    service.config = service.serving.config = service.pairing.config = config
    service.keys = keys
    service.gate.places, service.gate.patience_s = config.queue, config.queue_s
    if config.prefill_policy != old.prefill_policy:
        service.pairing.prefill_policy = POLICIES[config.prefill_policy](random)
    if config.decode_policy != old.decode_policy:
        service.pairing.decode_policy = POLICIES[config.decode_policy](random)
    if (config.retry_share, config.retry_reserve) != (old.retry_share, old.retry_reserve):
        service.serving.budget = Budget(config.retry_share, config.retry_reserve)
    limits = service.serving.limits
    limits.rooms, limits.rate, limits.burst = (
        config.client_rooms, config.client_rate, config.client_burst,
    )  # fmt: skip
    service.serving.learn_meetings()
    return late


def reloaded(
    service: Service, read: Callable[[], tuple[LbConfig, ApiKeys | None]], random: Random
) -> bool:
    """Read the file again and apply it; say whether it was right."""
    try:
        config, keys = read()
    except OperatorError as error:
        service.log.error("config.refused", what=error.what, hint=error.hint)
        return False
    late = apply(service, config, keys, random)
    service.log.info("config.reloaded", needs_restart=", ".join(late))
    return True
