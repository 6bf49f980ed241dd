"""GGUF files and what transformers runs are served too, prefill and decode apart."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.test_tokens import NEW, prompts, reference, streamed, whole
from tests.support.breadth import breadth_checkpoint
from tests.support.checkpoints import VOCABULARY, WINDOW, checkpoint, write_checkpoint
from tests.support.cluster import Cluster, running
from tests.support.gguf_files import SAYABLE, write_gguf

pytestmark = pytest.mark.live

ENGINE = {"dtype": "fp32", "page_size": 16, "chunk_tokens": 32, "kv_tokens": 4096, "threads": 1}
LENGTHS = (1, WINDOW, 3 * WINDOW + 5)


@pytest.fixture
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def gguf(folder: Path) -> tuple[Path, Path]:
    """Write a Gemma 3 as a GGUF file; returns it and the directory it was made of."""
    directory = folder / "directory"
    write_checkpoint(directory, "gemma3", **SAYABLE["gemma3"])
    write_gguf(directory, folder / "tiny.gguf")
    return folder / "tiny.gguf", directory


def breadth(folder: Path) -> tuple[Path, Path]:
    """Write an OLMo 3 with a tokenizer."""
    directory = folder / "olmo3"
    shutil.copytree(breadth_checkpoint("Olmo3ForCausalLM"), directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoint("llama") / name, directory)
    return directory, directory


@pytest.fixture(params=[gguf, breadth], ids=["gguf", "breadth"])
def served(
    request: pytest.FixtureRequest, tmp_path: Path, _cache: None
) -> Iterator[tuple[Path, Cluster]]:
    model, directory = request.param(tmp_path)
    (tmp_path / "cluster").mkdir()
    with running(tmp_path / "cluster", str(model), engine=ENGINE) as cluster:
        yield directory, cluster


def test_it_says_what_transformers_says(served: tuple[Path, Cluster]) -> None:
    directory, cluster = served
    asked = prompts(VOCABULARY, LENGTHS, seed=3)
    expected = reference(str(directory), asked, NEW)
    assert [whole(cluster, prompt) for prompt in asked] == expected
    assert [streamed(cluster, prompt) for prompt in asked] == expected
