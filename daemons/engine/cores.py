"""Which cores a rank may use: as a setting spells them, or its share of the host's.

Two roles with a thread per core each are far slower on one host than two that keep out of each
other's way. So a share never overlaps another; it is none where there are more threads than cores.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from daemons.cluster.errors import OperatorError
from daemons.engine.config import EngineConfig

AUTO = "auto"


def listed(cores: str) -> tuple[int, ...]:
    """Return the cores of a list as in ``0-3,8``; "" and ``auto`` have none.

    Raises:
        OperatorError: a range that ends before it begins.
    """
    if cores in ("", AUTO):
        return ()
    found: list[int] = []
    for part in cores.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise OperatorError(f"engine.cores: {part} ends before it begins", "0-3 is 0, 1, 2, 3")
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def shared_out(
    config: EngineConfig, available: Sequence[int], index: int, ranks: int
) -> EngineConfig:
    """Return the configuration with numbers in the place of ``threads: 0`` and ``cores: auto``.

    Args:
        config: of one rank.
        available: the cores that this process may use.
        index: which of the host's ranks this one is, from 0.
        ranks: how many ranks the host has, of all workers.
    """
    named = listed(config.cores)
    share = max(1, len(available) // ranks)
    threads = config.threads or len(named) or share
    cores = config.cores
    if cores == AUTO:
        mine = available[index * threads : (index + 1) * threads]
        cores = ",".join(map(str, mine)) if threads * ranks <= len(available) else ""
    return msgspec.structs.replace(config, threads=threads, cores=cores)
