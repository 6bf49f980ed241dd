from __future__ import annotations

from daemons.engine.models import qwen3_moe
from daemons.engine.weights import read_json
from tests.support.checkpoints import WINDOW, checkpoint


def test_layers_that_are_named_or_fall_between_the_steps_have_no_experts() -> None:
    config = read_json(checkpoint("qwen3-moe") / "config.json")
    found = qwen3_moe.read(config)
    assert found.experts is not None
    assert found.experts.layers == (0, 2)
    stepped = qwen3_moe.read({**config, "decoder_sparse_step": 3, "mlp_only_layers": None})
    assert stepped.experts is not None
    assert stepped.experts.layers == (2,)


def test_a_window_that_is_used_holds_in_every_layer() -> None:
    config = read_json(checkpoint("qwen3-moe-window") / "config.json")
    assert qwen3_moe.read(config).model.windows == (WINDOW, WINDOW)
