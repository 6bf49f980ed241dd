from __future__ import annotations

import pytest

from daemons.cluster.errors import OperatorError
from daemons.engine.models import gemma3
from daemons.engine.rope import Rope
from daemons.engine.weights import read_json
from tests.support.checkpoints import WINDOW, checkpoint

NEAR, FAR = Rope(1e4), Rope(1e6, "linear", 8.0)


def test_layers_with_a_window_rotate_by_a_base_of_their_own() -> None:
    found = gemma3.read(read_json(checkpoint("gemma3") / "config.json"))
    assert found.model.windows == (WINDOW, WINDOW, None, WINDOW)
    assert found.ropes == (NEAR, NEAR, FAR, NEAR)


def test_the_newer_spelling_says_the_same() -> None:
    config = read_json(checkpoint("gemma3") / "config.json")
    for name in ("rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"):
        del config[name]
    sliding, full = "sliding_attention", "full_attention"
    newer = {
        "layer_types": [sliding, sliding, full, sliding],
        "rope_parameters": {
            sliding: {"rope_type": "default", "rope_theta": 1e4},
            full: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        },
    }
    assert gemma3.read({**config, **newer}).ropes == (NEAR, NEAR, FAR, NEAR)


def test_capped_scores_which_no_gemma_3_has_are_refused() -> None:
    config = read_json(checkpoint("gemma3") / "config.json")
    with pytest.raises(OperatorError, match="attn_logit_softcapping"):
        gemma3.read({**config, "attn_logit_softcapping": 50.0})
