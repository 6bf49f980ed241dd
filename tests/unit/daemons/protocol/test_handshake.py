"""What the types of the handshake refuse; their bytes are in ``tests/wire``."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from daemons.protocol.handshake import (
    PAGES_LIMIT,
    Destination,
    Fence,
    KvRegion,
    Message,
    Progress,
)
from daemons.protocol.ids import ROOM_LIMIT, PeerId
from daemons.protocol.status import Status

D0 = PeerId("d0", 3)
DESTINATION = Destination(D0, 5, 7, 1, (1, 2), 0, 20, "0123456789abcdef")


@pytest.mark.parametrize(
    "wrong",
    [
        {"room": 0},
        {"room": ROOM_LIMIT},
        {"attempt": 0},
        {"pages": [-1]},
        {"pages": [PAGES_LIMIT]},
        {"row": -1},
        {"prompt_tokens": 0},
        {"prompt_digest": "0123456789abcde"},
        {"prompt_digest": "0123456789ABCDEF"},
        {"prefix_tokens": -16},
        {"to_epoch": 0},
        {"sender": {"instance": "D 0", "epoch": 3, "rank": 0}},
    ],
)
def test_a_destination_out_of_range_is_no_destination(wrong: dict[str, Any]) -> None:
    plain = msgspec.to_builtins(DESTINATION)
    assert msgspec.convert(plain, Message) == DESTINATION
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**plain, **wrong}, Message)


def test_a_region_needs_an_address_and_a_size() -> None:
    assert msgspec.convert([4096, 64, 0, 1, 2], KvRegion) == KvRegion(4096, 64, 0, 1, 2)
    for wrong in ([0, 64, 0, 0, 0], [4096, 0, 0, 0, 0], [4096, 64, 0, 2, 0], [-1, 64, 0, 0, 0]):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, KvRegion)


def test_a_progress_without_a_word_about_its_fence_has_a_clean_one() -> None:
    assert Progress(D0, 5, 7, 1, Status.SUCCESS).fence is Fence.CLEAN
