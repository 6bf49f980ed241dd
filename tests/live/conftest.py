"""Clusters that several live tests share; each is brought up once per session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, running

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
