from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from daemons.cluster.model import DEFAULT_MODEL
from daemons.cluster.models import cache_directory, embedded_directory, model_directory
from tests.support.checkpoints import checkpoint


def test_a_path_is_the_directory_itself() -> None:
    assert model_directory(str(checkpoint("llama"))) == checkpoint("llama").resolve()


def test_a_tilde_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(checkpoint("llama").parent))
    assert model_directory("~/llama") == checkpoint("llama").resolve()


@pytest.mark.parametrize("name", ["gpt-5", "/no/such/directory"])
def test_an_unknown_model_is_named_with_what_a_model_may_be(name: str) -> None:
    with pytest.raises(OperatorError, match=name) as caught:
        model_directory(name)
    assert DEFAULT_MODEL in caught.value.hint


def test_a_directory_that_lacks_files_names_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(OperatorError, match=r"lacks tokenizer\.json, \*\.safetensors"):
        model_directory(str(tmp_path))


def test_the_embedded_model_lies_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert embedded_directory("x") == tmp_path / "pd" / "models" / "x"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_directory() == tmp_path / "home" / ".cache" / "pd"


def test_an_embedded_model_that_is_not_made_yet_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(OperatorError, match=DEFAULT_MODEL) as caught:
        model_directory(DEFAULT_MODEL)
    assert "python -m daemons.engine.embedded" in caught.value.hint


def test_a_model_is_found_without_torch() -> None:
    code = "import sys, daemons.cluster.models; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "set()"
