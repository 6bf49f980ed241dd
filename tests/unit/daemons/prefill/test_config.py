"""Settings of a pd-prefill instance."""

from __future__ import annotations

import msgspec
import pytest

from daemons.prefill.config import PrefillConfig


def test_an_empty_section_has_all_defaults() -> None:
    assert msgspec.convert({}, PrefillConfig) == PrefillConfig()


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"row": 1}, "row"),
        ({"rows": 0}, r"\$\.rows"),
        ({"port": 65536}, r"\$\.port"),
        ({"max_orphans": 0}, r"\$\.max_orphans"),
        ({"engine": {"page_sise": 4}}, "page_sise"),
        ({"timers": {"queue_s": -1}}, r"\$\.timers\.queue_s"),
    ],
)
def test_a_mistake_is_refused_with_its_place(wrong: dict[str, object], place: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=place):
        msgspec.convert(wrong, PrefillConfig)
