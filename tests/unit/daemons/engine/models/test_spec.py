from __future__ import annotations

from typing import Any

import pytest

from daemons.cluster.errors import OperatorError
from daemons.engine.attention import Rule
from daemons.engine.models.spec import decoder_spec, windows_by_type
from daemons.engine.weights import read_json
from tests.support.checkpoints import checkpoint


def config_of(**changes: Any) -> dict[str, Any]:
    return {**read_json(checkpoint("llama") / "config.json"), **changes}


def test_sizes_that_older_files_leave_out_are_worked_out() -> None:
    config = config_of()
    for name in ("head_dim", "num_key_value_heads", "tie_word_embeddings"):
        del config[name]
    found = decoder_spec(config)
    assert (found.model.head_dim, found.model.kv_heads, found.tied) == (16, 4, False)
    assert decoder_spec(config, tied=True).tied


def test_every_layer_has_a_rule_and_a_rotation() -> None:
    found = decoder_spec(config_of(num_hidden_layers=2), windows=(20, None), scale=0.5, softcap=3.0)
    assert found.model.rules == (Rule(20, 0.5, 3.0), Rule(None, 0.5, 3.0))
    assert found.model.windows == (20, None)
    assert len(found.ropes) == 2


def test_a_window_that_is_never_reached_is_none() -> None:
    assert decoder_spec(config_of(), windows=(512, 511)).model.windows == (None, 511)


def test_the_types_of_the_configuration_go_before_those_worked_out() -> None:
    types = ["full_attention", "sliding_attention"]
    assert windows_by_type({}, 7, types) == (None, 7)
    assert windows_by_type({"layer_types": types[::-1]}, 7, types) == (7, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_a_feature_that_would_change_the_tokens_is_refused(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(OperatorError, match=words):
        decoder_spec(config_of(**changes))
    with pytest.raises(OperatorError, match="type linear_attention"):
        windows_by_type({"layer_types": ["linear_attention"]}, 7, [])
