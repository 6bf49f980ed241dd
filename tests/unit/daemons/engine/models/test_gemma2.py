from __future__ import annotations

import pytest

from daemons.cluster.errors import OperatorError
from daemons.engine.attention import Rule
from daemons.engine.models import gemma2
from daemons.engine.weights import read_json
from tests.support.checkpoints import WINDOW, checkpoint


def test_every_other_layer_has_a_window_and_all_scores_are_capped() -> None:
    config = read_json(checkpoint("gemma2") / "config.json")
    found = gemma2.read(config).model.rules
    scale = 24**-0.5
    assert found == (Rule(WINDOW, scale, 5.0), Rule(None, scale, 5.0), Rule(WINDOW, scale, 5.0))


def test_a_gemma_is_tied_unless_it_says_otherwise() -> None:
    config = read_json(checkpoint("gemma2") / "config.json")
    del config["tie_word_embeddings"]
    assert gemma2.read(config).tied


def test_attention_in_both_directions_is_refused() -> None:
    config = read_json(checkpoint("gemma2") / "config.json")
    with pytest.raises(OperatorError, match="both directions"):
        gemma2.read({**config, "use_bidirectional_attention": True})
