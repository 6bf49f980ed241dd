from __future__ import annotations

from daemons.engine.models import llama
from daemons.engine.weights import read_json
from tests.support.checkpoints import checkpoint


def test_a_llama_has_biases_only_when_it_says_so() -> None:
    plain = llama.read(read_json(checkpoint("llama") / "config.json"))
    biased = llama.read(read_json(checkpoint("llama-bias") / "config.json"))
    assert (plain.qkv_bias, plain.out_bias, plain.mlp_bias) == (False, False, False)
    assert (biased.qkv_bias, biased.out_bias, biased.mlp_bias) == (True, True, True)
