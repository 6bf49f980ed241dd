from __future__ import annotations

from daemons.engine.models import qwen3
from daemons.engine.weights import read_json
from tests.support.checkpoints import checkpoint


def test_queries_and_keys_are_normed_in_the_place_of_biases() -> None:
    found = qwen3.read(read_json(checkpoint("qwen3") / "config.json"))
    assert (found.qkv_bias, found.out_bias, found.qk_norm) == (False, False, True)
