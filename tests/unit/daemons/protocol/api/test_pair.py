"""The balancer's part of a body."""

from __future__ import annotations

import msgspec
import pytest

from daemons.protocol.api.pair import PairBody


def test_fields_are_scalars_or_lists() -> None:
    one = msgspec.json.decode(
        b'{"bootstrap_room": 7, "text": "other fields are let be"}', type=PairBody
    )
    assert one == PairBody(bootstrap_room=7)
    many = b'{"bootstrap_room": [7, 8], "bootstrap_host": ["a", null], "bootstrap_port": [1, 2]}'
    assert msgspec.json.decode(many, type=PairBody).bootstrap_host == ["a", None]
    with pytest.raises(msgspec.ValidationError, match="bootstrap_room"):
        msgspec.json.decode(b'{"bootstrap_room": "7"}', type=PairBody)
