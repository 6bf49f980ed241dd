from __future__ import annotations

from daemons.engine.models import qwen2
from daemons.engine.weights import read_json
from tests.support.checkpoints import WINDOW, checkpoint


def test_only_queries_keys_and_values_have_biases() -> None:
    found = qwen2.read(read_json(checkpoint("qwen2") / "config.json"))
    assert (found.qkv_bias, found.out_bias, found.mlp_bias) == (True, False, False)


def test_a_window_holds_in_the_upper_layers_and_only_when_it_is_used() -> None:
    config = read_json(checkpoint("qwen2-window") / "config.json")
    assert qwen2.upper_windows(config) == (None, WINDOW)
    assert qwen2.upper_windows({**config, "use_sliding_window": False}) == (None, None)
    types = ["sliding_attention", "full_attention"]
    assert qwen2.upper_windows({**config, "layer_types": types}) == (WINDOW, None)
