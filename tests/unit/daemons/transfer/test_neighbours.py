from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest

from daemons.kv.shareable import shareable
from daemons.transfer import neighbours, other_memory
from daemons.transfer.backend import Comb, Region
from daemons.transfer.neighbours import Neighbours
from daemons.transfer.notice import Notice, NotThere
from daemons.transfer.shares import Share, share_of
from tests.support.transfer_process import Process, until


@pytest.fixture
def known() -> Iterator[Neighbours]:
    known = Neighbours()
    yield known
    known.close()


def region(array: np.ndarray) -> Region:
    return Region(array.ctypes.data, array.nbytes)


def test_a_session_that_is_none_is_not_there(known: Neighbours) -> None:
    with pytest.raises(NotThere, match="no session"):
        known.look("127.0.0.1:15001")


def test_a_neighbour_is_the_same_until_its_notice_changes(known: Neighbours) -> None:
    notice, array = Notice(), np.zeros(64, dtype=np.uint8)
    session = str(notice.address)
    first = known.look(session)
    assert known.look(session) is first
    notice.show([(region(array), None)])
    second = known.look(session)
    assert second.memory.regions == [region(array)]
    assert known.get(session) is second


def test_one_that_is_gone_is_forgotten(known: Neighbours) -> None:
    notice = Notice()
    session = str(notice.address)
    known.look(session)
    notice.wipe()
    with pytest.raises(NotThere, match="has closed"):
        known.look(session)
    assert known.get(session) is None


def test_a_comb_has_its_place_here_only_if_all_of_it_is_mapped(known: Neighbours) -> None:
    notice, plain = Notice(), np.zeros(4096, dtype=np.uint8)
    shared = np.frombuffer(shareable(4 * mmap.PAGESIZE), dtype=np.uint8)
    part = region(shared[4096:])
    notice.show([(region(plain), share_of(region(plain))), (part, share_of(part))])
    found = known.look(str(notice.address))
    here = found.mapped_at(Comb(1, part.address + 10, 5, 3, 0, 100))
    assert here is not None
    (mapped,) = found.mapped
    assert here.target == mapped.address + 4096 + 10
    assert found.mapped_at(Comb(1, part.address + 10, 5, 3, 0, 8192)) is None
    assert found.mapped_at(Comb(1, part.address - 1, 5, 1)) is None
    assert found.mapped_at(Comb(1, plain.ctypes.data, 5, 1)) is None


def test_a_share_that_cannot_be_mapped_is_memory_all_the_same(known: Neighbours) -> None:
    notice = Notice()
    shared = np.frombuffer(shareable(4096), dtype=np.uint8)
    share = share_of(region(shared))
    assert share is not None
    notice.show([(region(shared), share._replace(inode=1))])
    found = known.look(str(notice.address))
    assert found.mapped == ()
    assert found.memory.regions == [region(shared)]


def test_no_more_are_remembered_than_the_limit(
    known: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "LIMIT", 2)
    notices = [Notice() for _ in range(3)]
    for notice in notices:
        known.look(str(notice.address))
    assert [known.get(str(n.address)) is None for n in notices] == [True, False, False]


def test_who_is_forgotten_or_pushed_out_while_it_lives_keeps_no_file_open(
    known: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "LIMIT", 2)
    notices = [Notice() for _ in range(3)]

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def rounds(count: int) -> int:
        for _ in range(count):
            for notice in notices:
                known.look(str(notice.address))
        known.forget(str(notices[0].address))
        return files()

    assert rounds(1) == rounds(5)


@pytest.mark.parametrize(
    "regions",
    [
        [Region(2**63 + 5, 10)],
        [Region(2**64 - 1, 1)],
        [Region(4096, 2**64 - 1)],
        [Region(4096, 0)],
        [Region(0, 4096)],
        [Region(4096, 100), Region(4100, 100)],
        [Region(4096, 100), Region(4096, 100)],
    ],
)
def test_one_that_shows_what_no_memory_is_takes_no_bytes(
    known: Neighbours, regions: list[Region]
) -> None:
    notice = Notice()
    notice.show(list(zip(regions, [None, Share(3, 1, 1, 0)], strict=False)))
    with pytest.raises(NotThere, match="shows no memory"):
        known.look(str(notice.address))


@pytest.mark.parametrize("place", [{"offset": 2**64 - 1}, {"number": 2**62}, {"device": 2**64 - 1}])
def test_a_share_that_is_out_of_all_bounds_is_memory_all_the_same(
    known: Neighbours, place: dict[str, int]
) -> None:
    notice = Notice()
    shared = np.frombuffer(shareable(4096), dtype=np.uint8)
    share = share_of(region(shared))
    assert share is not None
    notice.show([(region(shared), share._replace(**place))])
    assert known.look(str(notice.address)).mapped == ()


def test_memory_that_the_kernel_keeps_from_us_is_not_there(
    known: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pid: int, address: int, length: int) -> bytes:
        raise PermissionError(1, "Operation not permitted")  # as under a strict ptrace_scope

    monkeypatch.setattr(other_memory, "read", refused)
    notice, plain = Notice(), np.zeros(4096, dtype=np.uint8)
    shared = np.frombuffer(shareable(4096), dtype=np.uint8)
    notice.show([(region(shared), share_of(region(shared)))])
    assert known.look(str(notice.address)).mapped  # that needs no such right
    notice.show([(region(plain), None)])
    with pytest.raises(NotThere, match="not permitted"):
        known.look(str(notice.address))


def test_a_process_that_ends_is_forgotten_with_what_was_mapped_of_it(known: Neighbours) -> None:
    peer = Process(1 << 20, backend="cma")
    assert known.look(peer.session).mapped
    peer.kill()
    until(lambda: known.get(peer.session) is None, "the end to be seen")
