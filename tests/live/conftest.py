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


@pytest.fixture(scope="session", params=["llama", "qwen3"])
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Cluster]]:
    """A tiny random model of each kind, and the directory it is in."""
    model = str(checkpoint(request.param))
    engine = {**SMALL, "kv_tokens": 8192, "threads": 1}
    with running(tmp_path_factory.mktemp(request.param), model, engine=engine) as cluster:
        yield model, cluster
