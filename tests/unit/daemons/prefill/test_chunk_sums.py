"""Which chunks are summed, and that none of those gets lost."""

from __future__ import annotations

import numpy as np
import pytest

from daemons.kv.stretch import Stretch
from daemons.prefill import chunk_sums
from daemons.prefill.chunk_sums import SAMPLED_ONE_IN, ChunkSums, Mode
from daemons.protocol.handshake import KvRegion
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import SUMS_LIMIT
from daemons.transfer.sums import PageSums

PAGES = 4096
D0, KEY = PeerId("d0", 1), RoomKey(5, 1)
memory = np.random.default_rng(1).integers(0, 256, PAGES * 4, dtype=np.uint8)
REGIONS = [KvRegion(memory.ctypes.data, 4, 0, 0, 0)]


def sums(mode: Mode) -> ChunkSums:
    made = ChunkSums(PageSums(REGIONS, PAGES), mode)
    made.learn(D0, REGIONS)
    return made


def covered(made: ChunkSums, key: RoomKey = KEY) -> list[int]:
    taken = made.take(key)
    return [page for one in taken for page in range(one.first, one.first + one.pages)]


def test_all_means_every_page_however_many_chunks_there_are() -> None:
    made, ours = sums("all"), PageSums(REGIONS, PAGES)
    for first in range(0, 3 * SUMS_LIMIT, 2):
        made.sent(D0, KEY, Stretch(first, (first, first + 1)))
    taken = made.take(KEY)
    assert len(taken) <= SUMS_LIMIT
    assert ours.difference(Stretch(0, tuple(range(3 * SUMS_LIMIT + 1))), taken) == ""
    assert sum(one.pages for one in taken) == 3 * SUMS_LIMIT + 1


def test_off_means_none() -> None:
    made = sums("off")
    made.sent(D0, KEY, Stretch(0, (1, 2)))
    assert made.take(KEY) == []


def test_about_one_chunk_in_so_many_is_sampled_and_always_the_same() -> None:
    chosen = []
    for _ in range(2):
        made = sums("sampled")
        for room in range(1, 1001):
            made.sent(D0, RoomKey(room, 1), Stretch(0, (room,)))
        chosen.append([room for room in range(1, 1001) if made.take(RoomKey(room, 1))])
    assert chosen[0] == chosen[1]
    assert 0.5 < len(chosen[0]) * SAMPLED_ONE_IN / 1000 < 2


def test_sums_are_taken_once() -> None:
    made = sums("all")
    made.sent(D0, KEY, Stretch(0, (1, 2)))
    assert covered(made) == [0, 1]
    assert covered(made) == []


def test_a_decode_with_other_heads_cannot_compare_and_gets_none() -> None:
    made, other = sums("all"), PeerId("d1", 1)
    made.learn(other, [KvRegion(4096, 4, 0, 0, 1)])
    made.sent(other, KEY, Stretch(0, (1,)))
    made.forget(D0)
    made.sent(D0, KEY, Stretch(0, (1,)))
    assert covered(made) == []


def test_rooms_that_never_come_to_their_row_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_sums, "ROOMS_LIMIT", 2)
    made = sums("all")
    for room in (1, 2, 3):
        made.sent(D0, RoomKey(room, 1), Stretch(0, (1,)))
    assert [bool(covered(made, RoomKey(room, 1))) for room in (1, 2, 3)] == [False, True, True]
