from __future__ import annotations

from typing import Any

import pytest

from daemons.cluster.errors import OperatorError
from daemons.engine.models import spec
from daemons.engine.weights import read_json
from tests.support.checkpoints import KINDS, checkpoint


def config_of(kind: str, **changes: Any) -> dict[str, Any]:
    return {**read_json(checkpoint(kind) / "config.json"), **changes}


def test_a_llama_has_biases_only_when_it_says_so() -> None:
    plain, biased = spec.llama(config_of("llama")), spec.llama(config_of("llama-bias"))
    assert (plain.qkv_bias, plain.out_bias, plain.mlp_bias) == (False, False, False)
    assert (biased.qkv_bias, biased.out_bias, biased.mlp_bias) == (True, True, True)


def test_the_families_differ_in_flags() -> None:
    qwen2, qwen3 = spec.qwen2(config_of("qwen2")), spec.qwen3(config_of("qwen3"))
    assert (qwen2.qkv_bias, qwen2.out_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.out_bias, qwen3.qk_norm) == (False, False, True)


def test_sizes_that_older_files_leave_out_are_worked_out() -> None:
    config = config_of("llama")
    for name in ("head_dim", "num_key_value_heads", "tie_word_embeddings"):
        del config[name]
    found = spec.llama(config)
    assert (found.head_dim, found.kv_heads, found.tied) == (16, 4, False)


def test_a_window_that_is_never_reached_is_none() -> None:
    assert spec.mistral(config_of("mistral", sliding_window=512)).positions == 512


@pytest.mark.parametrize(
    ("read", "kind", "changes", "words"),
    [
        (spec.mistral, "mistral", {"sliding_window": 511}, "sliding window of 511"),
        (spec.qwen2, "qwen2", {"use_sliding_window": True}, "sliding window"),
        (
            spec.qwen3,
            "qwen3",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "sliding window",
        ),
        (spec.llama, "llama", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        (spec.llama, "llama", {"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_a_feature_that_would_change_the_tokens_is_refused(
    read: Any, kind: str, changes: dict[str, Any], words: str
) -> None:
    assert kind in KINDS
    with pytest.raises(OperatorError, match=words):
        read(config_of(kind, **changes))
