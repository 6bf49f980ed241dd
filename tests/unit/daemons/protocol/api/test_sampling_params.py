"""SGLang's sampling parameters."""

from __future__ import annotations

import msgspec
import pytest

from daemons.protocol.api.sampling_params import Wishes


def test_null_is_absent_and_a_misspelt_wish_is_refused() -> None:
    assert msgspec.convert(dict.fromkeys(Wishes.__struct_fields__), Wishes) == Wishes()
    with pytest.raises(msgspec.ValidationError, match="temprature"):
        msgspec.convert({"temprature": 1.0}, Wishes)
