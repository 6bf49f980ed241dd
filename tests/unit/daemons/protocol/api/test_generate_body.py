"""The body of SGLang's endpoint."""

from __future__ import annotations

import msgspec
import pytest

from daemons.protocol.api.generate_body import GenerateBody
from daemons.protocol.api.sampling_params import Wishes


def test_parameters_are_one_for_all_or_one_for_each_prompt() -> None:
    raw = b'{"text": "a", "sampling_params": {"n": 2}, "log_metrics": true}'
    assert msgspec.json.decode(raw, type=GenerateBody).sampling_params == Wishes(n=2)
    raw = b'{"input_ids": [[1], [2]], "sampling_params": [{}, {"seed": 1}]}'
    body = msgspec.json.decode(raw, type=GenerateBody)
    assert body.sampling_params == [Wishes(), Wishes(seed=1)]
    with pytest.raises(msgspec.ValidationError, match="sampling_params"):
        msgspec.json.decode(b'{"sampling_params": 5}', type=GenerateBody)
