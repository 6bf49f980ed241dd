"""What instances tell the phone book."""

from __future__ import annotations

import msgspec
import pytest

from daemons.protocol.topology import (
    Fingerprint,
    Registration,
    Role,
    Shape,
    State,
    differences,
)

OURS = Fingerprint("m1", "fp32", 16, 30, 3, 64)


def test_equal_fingerprints_may_pair() -> None:
    assert differences(OURS, msgspec.structs.replace(OURS)) == []


@pytest.mark.parametrize(
    ("field", "theirs"),
    [
        ("model", "m2"),
        ("dtype", "bf16"),
        ("page_size", 64),
        ("layers", 31),
        ("kv_heads", 9),
        ("head_dim", 128),
        ("layout", "page-layer-head"),
        ("protocol", 1),
    ],
)
def test_each_difference_is_told_with_both_values(field: str, theirs: object) -> None:
    other = msgspec.structs.replace(OURS, **{field: theirs})
    (line,) = differences(OURS, other)
    assert line == f"{field}: ours {getattr(OURS, field)!r}, theirs {theirs!r}"


def test_all_differences_are_told() -> None:
    other = msgspec.structs.replace(OURS, model="x", page_size=1)
    assert len(differences(OURS, other)) == 2


def test_a_shape_counts_its_ranks() -> None:
    assert Shape().ranks == 1
    assert Shape(attn_tp_size=4, pp_size=2, attn_dp_size=3).ranks == 24


@pytest.mark.parametrize(
    "wrong",
    [
        {"instance": "P0"},
        {"epoch": 0},
        {"lease_s": 0},
        {"lease_s": 3601},
        {"http_port": 0},
        {"rank_port": 65536},
        {"shape": {"attn_tp_size": 0}},
        {"attn_tp_rank": -1},
        {"role": "worker"},
        {"surprise": 1},
    ],
)
def test_a_registration_out_of_range_is_refused(wrong: dict[str, object]) -> None:
    good = Registration("p0", Role.PREFILL, 5, State.READY, "127.0.0.1", 8000, 10.0, "0.1.0", OURS)
    body = msgspec.to_builtins(good)
    assert msgspec.convert(body, Registration) == good
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(body | wrong, Registration)
