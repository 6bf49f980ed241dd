from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from daemons.cluster.errors import OperatorError
from daemons.engine.device import Place
from daemons.engine.models import MODELS, load_model, read_spec
from daemons.engine.models.breadth import BREADTH
from tests.support.breadth import CONFIGS, breadth_checkpoint
from tests.support.checkpoints import ARCHITECTURES, KINDS, checkpoint, write_checkpoint

PLACE = Place(torch.device("cpu"), torch.float32)


def test_every_architecture_of_the_table_has_a_checkpoint_in_the_tests() -> None:
    assert {read_spec(checkpoint(kind)).model.architecture for kind in KINDS} == set(MODELS)
    assert set(ARCHITECTURES) == set(MODELS)
    assert {kind.split()[0] for kind in CONFIGS} == set(BREADTH)
    assert not set(MODELS) & set(BREADTH)
    for name, kind in ARCHITECTURES.items():
        assert read_spec(checkpoint(kind)).model.architecture == name


@pytest.mark.parametrize("names", [["MambaForCausalLM"], [], None])
def test_an_unknown_architecture_is_named_with_what_is_served(
    tmp_path: Path, names: list[str] | None
) -> None:
    write_checkpoint(tmp_path, "llama", architectures=names)
    with pytest.raises(OperatorError, match="is not served") as caught:
        load_model(tmp_path, PLACE)
    assert (names or ["(none)"])[0] in caught.value.what
    assert all(name in caught.value.hint for name in (*MODELS, *BREADTH))
    assert "pd[breadth]" in caught.value.hint


def test_a_configuration_that_lacks_a_size_names_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace("num_hidden_layers", "layers"))
    with pytest.raises(OperatorError, match="num_hidden_layers"):
        load_model(tmp_path, PLACE)


def test_weights_that_do_not_fit_the_configuration_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"intermediate_size": 96', '"intermediate_size": 95'))
    with pytest.raises(OperatorError, match=r"mlp\..*shape \[96, 64\].*\[95, 64\]"):
        load_model(tmp_path, PLACE)


def test_our_own_definitions_import_no_transformers() -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from daemons.engine.config import EngineConfig\n"
        "from daemons.engine.engine import Engine\n"
        "Engine.load(EngineConfig(device='cpu', kv_tokens=64), Path(sys.argv[1])).warm_up()\n"
        "print('transformers' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(checkpoint("gemma3"))]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False"


def test_the_readme_names_every_architecture() -> None:
    readme = Path("README.md").read_text(encoding="utf-8")
    assert [name for name in (*MODELS, *BREADTH) if f"`{name}`" not in readme] == []


def test_rounded_weights_are_another_model_to_a_peer() -> None:
    _, plain = load_model(checkpoint("llama"), PLACE)
    names = {load_model(checkpoint("llama"), PLACE, None, kind)[1] for kind in ("int8", "int4")}
    assert names == {f"{plain}.int8", f"{plain}.int4"}


def test_a_model_that_transformers_runs_is_not_rounded() -> None:
    directory = breadth_checkpoint("GPT2LMHeadModel")
    with pytest.raises(OperatorError, match=r"engine\.weights is int8") as caught:
        load_model(directory, PLACE, None, "int8")
    assert "auto" in caught.value.hint
