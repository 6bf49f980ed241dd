"""Settings of the transfer."""

from __future__ import annotations

import msgspec
import pytest

from daemons.transfer.config import TransferConfig


def test_the_default_is_the_shortest_way_over_whatever_there_is() -> None:
    config = TransferConfig()
    assert (config.backend, config.protocol, config.device) == ("auto", "auto", "")


@pytest.mark.parametrize(
    "given",
    [
        {"protocol": "carrier"},
        {"batch_copies": 0},
        {"batch_copies": 1025},
        {"lanes": 0},
        {"write_timeout_s": 1.0},
        {"wirte_timeout_s": 5.0},
    ],
)
def test_a_setting_out_of_range_or_misspelt_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(given, TransferConfig)
