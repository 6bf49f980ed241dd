"""What a cluster file says."""

from __future__ import annotations

import msgspec
import pytest

from daemons.cluster.model import DEFAULT_HOST, DEFAULT_MODEL, Cluster, Host


def test_a_name_is_enough() -> None:
    cluster = msgspec.convert({"name": "c"}, Cluster)
    assert cluster.model == DEFAULT_MODEL
    assert cluster.hosts == {DEFAULT_HOST: Host("127.0.0.1")}
    assert cluster.prefill == {}


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({}, "name"),
        ({"name": ""}, r"\$\.name"),
        ({"name": "c", "prefil": {}}, "prefil"),
        ({"name": "c", "prefill": {"P0": {}}}, "prefill"),
        ({"name": "c", "hosts": {"a": {"adress": "::1"}}}, "adress"),
        ({"name": "c", "prefill": ["p0"]}, "prefill"),
    ],
)
def test_a_mistake_is_refused_with_its_place(wrong: dict[str, object], place: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=place):
        msgspec.convert(wrong, Cluster)
