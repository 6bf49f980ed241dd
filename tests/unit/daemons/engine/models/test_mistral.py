from __future__ import annotations

import pytest

from daemons.cluster.errors import OperatorError
from daemons.engine.models import mistral
from daemons.engine.weights import read_json
from tests.support.checkpoints import WINDOW, checkpoint


def test_the_window_of_a_mistral_holds_in_every_layer() -> None:
    config = read_json(checkpoint("mistral") / "config.json")
    assert mistral.read(config).model.windows == (WINDOW, WINDOW)
    assert mistral.read({**config, "sliding_window": None}).model.windows == (None, None)


def test_a_mistral_with_layers_of_several_types_is_refused() -> None:
    config = read_json(checkpoint("mistral") / "config.json")
    with pytest.raises(OperatorError, match="layer_types"):
        mistral.read({**config, "layer_types": ["full_attention", "sliding_attention"]})
