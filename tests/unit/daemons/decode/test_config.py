"""Settings of a pd-decode instance."""

from __future__ import annotations

import msgspec
import pytest

from daemons.decode.config import DecodeConfig


def test_an_empty_section_has_all_defaults() -> None:
    assert msgspec.convert({}, DecodeConfig) == DecodeConfig()


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"row": 1}, "row"),
        ({"rows": 0}, r"\$\.rows"),
        ({"port": 65536}, r"\$\.port"),
        ({"max_rooms": 0}, r"\$\.max_rooms"),
        ({"engine": {"page_sise": 4}}, "page_sise"),
        ({"timers": {"queue_s": -1}}, r"\$\.timers\.queue_s"),
    ],
)
def test_a_mistake_is_refused_with_its_place(wrong: dict[str, object], place: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=place):
        msgspec.convert(wrong, DecodeConfig)
