from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from daemons.cluster.errors import OperatorError
from daemons.cluster.models import model_directory
from daemons.engine.config import EngineConfig
from daemons.engine.engine import Engine
from daemons.engine.gguf.companion import main, make_companion
from tests.support.checkpoints import VOCABULARY, checkpoint
from tests.support.gguf_files import write_gguf


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_gguf_file_is_served_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(checkpoint("qwen2"), path, quantised="Q8_0")
    directory = model_directory(str(path))  # in a process of its own
    assert sorted(file.name for file in directory.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.gguf",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (directory / "model.gguf").resolve() == path
    engine = Engine.load(EngineConfig(device="cpu", kv_tokens=64), directory)
    assert (engine.vocab_size, engine.eos_token_ids) == (VOCABULARY, (2,))
    words = "the cat in"
    theirs = Tokenizer.from_file(str(checkpoint("qwen2") / "tokenizer.json")).encode(words).ids
    assert Tokenizer.from_file(str(directory / "tokenizer.json")).encode(words).ids == theirs


def test_it_is_made_once_and_anew_when_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(checkpoint("qwen2"), path)
    first = make_companion(path)
    assert make_companion(path) == first
    os.utime(path, (1, 1))
    assert make_companion(path) != first


def test_what_lies_beside_the_file_goes_before_its_own(tmp_path: Path) -> None:
    write_gguf(checkpoint("qwen2"), tmp_path / "tiny.gguf")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 9}')
    directory = make_companion(tmp_path / "tiny.gguf")
    assert (directory / "tokenizer.json").read_text() == "{}"
    assert json.loads((directory / "generation_config.json").read_text()) == {"eos_token_id": 9}


def test_a_broken_file_is_the_operators_error_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"no gguf")
    with pytest.raises(OperatorError, match="does not begin with GGUF") as caught:
        model_directory(str(path))
    assert "whole" in caught.value.hint
    assert main([str(path)]) == 1
    assert "GGUF" in json.loads(capsys.readouterr().err)["what"]
    assert list((tmp_path / "cache" / "pd" / "models").iterdir()) == []
    with pytest.raises(OperatorError, match=r"absent\.gguf"):
        model_directory(str(tmp_path / "absent.gguf"))
