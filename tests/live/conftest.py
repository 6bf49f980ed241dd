"""Clusters that several live tests share; each is brought up once per session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, running
from tests.support.faults import Right, clear, healthy

SMALL = {"chunk_tokens": 32, "batch_tokens": 64, "page_size": 16, "dtype": "fp32"}


@pytest.fixture(scope="session")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The embedded model, with small chunks so that short prompts have several."""
    engine = {**SMALL, "kv_tokens": 8192, "threads": 1}
    folder = tmp_path_factory.mktemp("smollm")
    with running(folder, "smollm2-135m-instruct", engine=engine) as cluster:
        yield cluster


@pytest.fixture(
    scope="session", params=[("llama", "::1"), ("qwen3", "127.0.0.1")], ids=["llama-v6", "qwen3-v4"]
)
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Cluster]]:
    """A tiny random model of each kind with the directory it is in, one of them over IPv6."""
    kind, address = request.param
    model = str(checkpoint(kind))
    sections = {
        "engine": {**SMALL, "kv_tokens": 8192, "threads": 1},
        "hosts": {"local": {"address": address}},
    }
    with running(tmp_path_factory.mktemp(kind), model, **sections) as cluster:
        yield model, cluster


# --- faults -----------------------------------------------------------------------------------

CHAOS = {
    "chaos": True,
    "engine": {
        "chunk_tokens": 8,
        "batch_tokens": 16,
        "page_size": 16,
        "dtype": "fp32",
        "kv_tokens": 2048,
        "threads": 1,
    },
    "lb": {"poll_s": 0.2, "attempts": 1},  # what fails shall be seen
    "transfer": {"backend": "mooncake", "write_timeout_s": 2},  # a write to the frozen stands still
    "timers": {
        "handshake_s": 8,
        "queue_s": 20,
        "destination_s": 10,
        "progress_s": 10,
        "peer_timeout_s": 3,
        "settle_s": 0.5,
        "lease_s": 3,
    },
}


@pytest.fixture(scope="session")
def right() -> Right:
    """What the tiny model really says."""
    return Right(str(checkpoint("llama")))


@pytest.fixture(scope="session")
def chaos_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A prefill and a decode that take faults, with small chunks and short deadlines."""
    workers = {"prefill": {"p0": {"max_rooms": 8}}, "decode": {"d0": {"max_rooms": 8}}}
    workers["decode"]["d0"]["retract_tokens"] = 2048
    folder = tmp_path_factory.mktemp("chaos")
    with running(folder, str(checkpoint("llama")), **CHAOS, **workers) as cluster:
        yield cluster


@pytest.fixture
def pair(chaos_pair: Cluster, right: Right) -> Iterator[Cluster]:
    """The same, well before and after each test."""
    healthy(chaos_pair, right)
    yield chaos_pair
    clear(chaos_pair, "p0", "d0")
    healthy(chaos_pair, right)


@pytest.fixture(scope="session")
def chaos_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two of each on ::1 that take faults."""
    workers = {"prefill": {"p0": {}, "p1": {}}, "decode": {"d0": {}, "d1": {}}}
    hosts = {"hosts": {"local": {"address": "::1"}}}
    folder = tmp_path_factory.mktemp("fleet")
    with running(folder, str(checkpoint("llama")), **CHAOS, **workers, **hosts) as cluster:
        yield cluster
