"""Prefills and decodes on addresses of their own, as on several hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, running
from tests.support.ports import free_port

PREFILLS, DECODES = "127.0.0.2", "127.0.0.3"  # the phone book is on neither
TIMERS = {"destination_s": 8, "handshake_s": 8, "notice_s": 0.2}


def at(address: str) -> dict[str, Any]:
    """Return the settings of a worker that is reached at an address only."""
    return {"bind": address, "advertise": address, "port": free_port(address)}


@pytest.fixture(scope="session")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two prefills of one address, two decodes of another; they take faults."""
    engine = {"chunk_tokens": 32, "page_size": 16, "dtype": "fp32", "kv_tokens": 4096, "threads": 1}
    with running(
        tmp_path_factory.mktemp("apart"),
        str(checkpoint("llama")),
        engine=engine,
        timers=TIMERS,
        chaos=True,
        lb={"poll_s": 0.2},
        prefill={name: at(PREFILLS) for name in ("p0", "p1")},
        decode={name: at(DECODES) for name in ("d0", "d1")},
    ) as cluster:
        yield cluster
