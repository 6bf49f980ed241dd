from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from daemons.cluster.errors import OperatorError
from daemons.engine.attention import Rule
from daemons.engine.device import Place
from daemons.engine.models import load_model
from daemons.engine.models.breadth import borrow
from tests.support.breadth import breadth_checkpoint
from tests.support.checkpoints import VOCABULARY, WINDOW

PLACE = Place(torch.device("cpu"), torch.float32)


def copy_of(kind: str, directory: Path, **changes: Any) -> Path:
    shutil.copytree(breadth_checkpoint(kind), directory, dirs_exist_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return directory


def test_each_layers_rule_is_what_it_asks_for() -> None:
    olmo3 = borrow(breadth_checkpoint("Olmo3ForCausalLM"), "Olmo3ForCausalLM", PLACE)
    assert olmo3.spec.windows == (WINDOW, WINDOW, WINDOW, None)
    granite = borrow(breadth_checkpoint("GraniteForCausalLM"), "GraniteForCausalLM", PLACE)
    assert granite.spec.rules == (Rule(scale=0.3),) * 3


def test_rotations_that_depend_on_the_length_limit_it() -> None:
    directory = breadth_checkpoint("Phi3ForCausalLM longrope")
    assert borrow(directory, "Phi3ForCausalLM", PLACE).spec.positions == 128


def test_a_window_that_is_never_reached_is_none(tmp_path: Path) -> None:
    directory = copy_of("Phi3ForCausalLM", tmp_path, sliding_window=512)
    assert borrow(directory, "Phi3ForCausalLM", PLACE).spec.windows == (None,) * 3


@torch.inference_mode()
def test_the_head_runs_over_some_rows_alone() -> None:
    model = borrow(breadth_checkpoint("GraniteForCausalLM"), "GraniteForCausalLM", PLACE)
    rows = torch.randn(5, 64)
    logits = model.logits(rows)
    assert logits.shape == (5, VOCABULARY)
    assert torch.allclose(model.logits(rows[3:4]), logits[3:4], atol=1e-5)


def test_two_models_of_one_process_do_not_share_their_attention() -> None:
    directory = breadth_checkpoint("PhiForCausalLM")
    one, other = (borrow(directory, "PhiForCausalLM", PLACE) for _ in range(2))
    assert one._seat is not other._seat
    assert one._head.config._attn_implementation != other._head.config._attn_implementation


def test_equal_models_have_equal_names_and_others_do_not(tmp_path: Path) -> None:
    directory = breadth_checkpoint("PhiForCausalLM")
    _, name = load_model(directory, PLACE)
    assert load_model(directory, PLACE)[1] == name
    changed = copy_of("PhiForCausalLM", tmp_path, max_position_embeddings=256)
    assert load_model(changed, PLACE)[1] != name


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(OperatorError, match="PhiForCausalLM is served through") as caught:
        borrow(breadth_checkpoint("PhiForCausalLM"), "PhiForCausalLM", PLACE)
    assert "pd[breadth]" in caught.value.hint


def test_attention_that_pages_cannot_give_is_refused(tmp_path: Path) -> None:
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
    )
    GptOssForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(OperatorError, match="attention with s_aux"):
        borrow(tmp_path, "GptOssForCausalLM", PLACE)


def test_a_model_that_cannot_be_read_is_the_operators_error(tmp_path: Path) -> None:
    copy_of("PhiForCausalLM", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(OperatorError, match="transformers cannot load it"):
        borrow(tmp_path, "PhiForCausalLM", PLACE)
