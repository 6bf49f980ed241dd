from __future__ import annotations

from typing import Any

import pytest

from daemons.cluster.errors import OperatorError
from daemons.engine.gguf.description import ARCHITECTURES, config_of, special_ids
from daemons.engine.gguf.header import Header, Stored
from daemons.engine.models import MODELS

SIZES = {
    "embedding_length": 64,
    "attention.head_count": 4,
    "feed_forward_length": 96,
    "block_count": 2,
    "context_length": 512,
    "attention.layer_norm_rms_epsilon": 9.999999974752427e-07,
    "attention.sliding_window": 20,
}


def header(kind: str, *, output: bool = False, **facts: Any) -> Header:
    own = {f"{kind}.{name}": value for name, value in SIZES.items()}
    tensors = {"token_embd.weight": Stored((320, 64), 0, 0)}
    if output:
        tensors["output.weight"] = Stored((320, 64), 0, 0)
    changes = {name.replace("__", "."): value for name, value in facts.items()}
    return Header({"general.architecture": kind, **own, **changes}, tensors)


def test_every_architecture_is_one_that_is_served() -> None:
    assert {name for name, _ in ARCHITECTURES.values()} <= set(MODELS)


def test_sizes_are_in_the_words_of_hugging_face() -> None:
    config = config_of(header("qwen2"))
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert (config["hidden_size"], config["head_dim"], config["num_key_value_heads"]) == (64, 16, 4)
    assert (config["vocab_size"], config["rms_norm_eps"]) == (320, 1e-6)


def test_a_head_of_its_own_is_a_tensor_of_its_own() -> None:
    assert config_of(header("llama"))["tie_word_embeddings"]
    assert not config_of(header("llama", output=True))["tie_word_embeddings"]


def test_only_the_far_layers_of_a_gemma_3_are_scaled() -> None:
    facts = {"gemma3__rope__scaling__type": "linear", "gemma3__rope__scaling__factor": 8.0}
    ropes = config_of(header("gemma3", gemma3__rope__freq_base=1e6, **facts))["rope_parameters"]
    assert ropes["full_attention"] == {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    assert ropes["sliding_attention"] == {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(("blocks", "scalar"), [(2, 32), (46, 16)])
def test_the_largest_gemma_2_scales_by_another_size(blocks: int, scalar: int) -> None:
    found = header("gemma2", gemma2__block_count=blocks, gemma2__attention__key_length=32)
    assert config_of(found)["query_pre_attn_scalar"] == scalar


def test_special_ids_are_those_that_are_told() -> None:
    assert special_ids(header("llama", tokenizer__ggml__eos_token_id=7)) == {"eos_token_id": 7}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (header("mamba"), "architecture mamba"),
        (header("llama", llama__expert_count=8), "llama with experts"),
        (header("llama", llama__rope__scaling__type="longrope"), "rotations of type longrope"),
    ],
)
def test_what_is_not_read_is_named(found: Header, words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        config_of(found)
