from __future__ import annotations

from daemons.protocol.ids import ROOM_LIMIT
from daemons.runtime.epoch import new_epoch


def test_a_later_start_has_a_greater_epoch_that_json_readers_keep_whole() -> None:
    first = new_epoch()
    while (second := new_epoch()) == first:
        pass
    assert 0 < first < second < ROOM_LIMIT
