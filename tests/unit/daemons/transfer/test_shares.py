"""What of our memory can be mapped by others, and what of theirs is."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from daemons.kv.shareable import shareable
from daemons.transfer import shares
from daemons.transfer.backend import Region
from daemons.transfer.shares import Mapped, Share, _populate, share_of
from tests.support.transfer_process import until

PAGES = 4
LENGTH = PAGES * mmap.PAGESIZE


def region(array: np.ndarray) -> Region:
    return Region(array.ctypes.data, array.nbytes)


@pytest.fixture
def ours() -> np.ndarray:
    return np.frombuffer(shareable(LENGTH), dtype=np.uint8)


@pytest.fixture
def unsealed() -> Iterator[tuple[int, np.ndarray]]:
    file = os.memfd_create("other", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, LENGTH)
    yield file, np.frombuffer(mmap.mmap(file, LENGTH), dtype=np.uint8)
    os.close(file)


def test_memory_in_a_file_is_found_at_its_place_in_it(ours: np.ndarray) -> None:
    whole = share_of(region(ours))
    assert whole is not None
    assert whole.offset == 0
    assert share_of(region(ours[100:9000])) == whole._replace(offset=100)


def test_a_part_of_a_mapping_that_the_kernel_keeps_by_itself_changes_nothing() -> None:
    memory = shareable(LENGTH)
    memory.madvise(mmap.MADV_DONTFORK, mmap.PAGESIZE, mmap.PAGESIZE)  # as RDMA does
    array = np.frombuffer(memory, dtype=np.uint8)
    lines = Path("/proc/self/maps").read_text().count(f"{array.ctypes.data + mmap.PAGESIZE:x}-")
    assert lines == 1
    share = share_of(region(array[10:]))
    assert share is not None
    assert share.offset == 10


def test_memory_that_is_in_no_file_cannot_be_had() -> None:
    assert share_of(region(np.zeros(LENGTH, dtype=np.uint8))) is None
    anonymous = np.frombuffer(mmap.mmap(-1, LENGTH), dtype=np.uint8)
    assert share_of(region(anonymous)) is None


def test_memory_past_the_end_of_its_file_cannot_be_had(ours: np.ndarray) -> None:
    assert share_of(Region(ours.ctypes.data, 1 << 40)) is None


def test_a_file_that_may_get_shorter_is_not_offered(unsealed: tuple[int, np.ndarray]) -> None:
    file, array = unsealed
    assert share_of(region(array)) is None
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    assert share_of(region(array)) is not None


def test_a_file_of_set_aside_pages_is_not_mapped() -> None:
    try:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB
        file = os.memfd_create("huge", flags)
    except OSError as error:
        pytest.skip(f"no hugetlb: {error}")
    told = os.fstat(file)
    os.ftruncate(file, os.fstatvfs(file).f_bsize)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(OSError, match="not what was offered"):
        Mapped(os.getpid(), file, LENGTH, (told.st_dev, told.st_ino))
    os.close(file)


def test_what_is_written_where_it_is_mapped_is_there(ours: np.ndarray) -> None:
    share = share_of(region(ours))
    assert share is not None
    mapped = Mapped(os.getpid(), share.number, LENGTH, share.file)
    mapped.memory[5] = 9
    assert mapped.address != ours.ctypes.data
    assert ours[5] == 9


def test_what_is_not_what_was_offered_is_not_mapped(
    ours: np.ndarray, unsealed: tuple[int, np.ndarray]
) -> None:
    share = share_of(region(ours))
    assert share is not None
    file, _ = unsealed
    told = os.fstat(file)
    others = [
        (share._replace(inode=share.inode + 1), LENGTH),
        (share._replace(device=share.device + 1), LENGTH),
        (share, LENGTH + mmap.PAGESIZE),
        (Share(file, told.st_dev, told.st_ino, 0), LENGTH),
        (share._replace(number=10**6), LENGTH),
    ]
    for other, length in others:
        with pytest.raises(OSError, match=r"not what was offered|No such file"):
            Mapped(os.getpid(), other.number, length, other.file)


def test_a_mapping_ends_with_its_last_reference(ours: np.ndarray) -> None:
    share = share_of(region(ours))
    assert share is not None
    mapped = Mapped(os.getpid(), share.number, LENGTH, share.file)
    line = f"{mapped.address:x}-"
    assert line in Path("/proc/self/maps").read_text()
    del mapped
    gc.collect()
    assert line not in Path("/proc/self/maps").read_text()


def in_our_table(mapped: Mapped) -> int:
    """Return how many bytes of a mapping need no fault any more."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    assert any(line.startswith(f"{mapped.address:x}-") for line in lines)
    return int(next(line for line in lines if line.startswith("Rss:")).split()[1]) << 10


def test_what_a_neighbour_has_taken_is_put_into_our_table(ours: np.ndarray) -> None:
    share = share_of(region(ours))
    assert share is not None
    ours[7] = 3
    mapped = Mapped(os.getpid(), share.number, LENGTH, share.file)
    assert mapped.is_taken
    assert in_our_table(mapped) == 0
    mapped.prepare()
    until(lambda: in_our_table(mapped) == LENGTH, "all pages to be there")
    assert mapped.memory[7] == 3


def test_what_a_neighbour_has_not_taken_stays_his_to_take(
    unsealed: tuple[int, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(shares, "Thread")
    file, _ = unsealed
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    os.posix_fallocate(file, 0, LENGTH - mmap.PAGESIZE)
    mapped = Mapped(os.getpid(), file, LENGTH)
    assert not mapped.is_taken
    mapped.prepare()
    os.posix_fallocate(file, 0, LENGTH)
    assert Mapped(os.getpid(), file, LENGTH).is_taken


def test_without_a_thread_they_are_mapped_as_they_are_written(
    ours: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise RuntimeError("can't start new thread")

    share = share_of(region(ours))
    assert share is not None
    monkeypatch.setattr(shares, "Thread", refused)
    mapped = Mapped(os.getpid(), share.number, LENGTH, share.file)
    mapped.prepare()
    assert in_our_table(mapped) == 0


def test_pages_are_put_there_only_as_long_as_somebody_has_the_mapping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[int] = []
    kept = [mmap.mmap(-1, 3 * shares.STEP_BYTES)]

    def populate(memory: mmap.mmap, begin: int) -> None:
        steps.append(begin)
        if begin:
            kept.clear()

    monkeypatch.setattr(shares, "populate", populate)
    _populate(weakref.ref(kept[0]))
    assert steps == [0, shares.STEP_BYTES]


def test_an_older_kernel_puts_none_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(memory: mmap.mmap, begin: int) -> None:
        raise OSError("no such advice")

    memory = mmap.mmap(-1, LENGTH)
    monkeypatch.setattr(shares, "populate", refused)
    _populate(weakref.ref(memory))
