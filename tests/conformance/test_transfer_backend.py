"""What every transfer backend promises, and what Mooncake promises across processes."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from daemons.transfer.backend import (
    BadCopy,
    Copy,
    CopyTable,
    PeerGone,
    Region,
    TransferBackend,
    WriteCut,
)
from daemons.transfer.config import TransferConfig
from daemons.transfer.mooncake_env import PORTS
from daemons.transfer.registry import create
from tests.support.backends import EVERY, backend_of, config_of, marked, memory_of
from tests.support.transfer_process import Process, settled, until

TIMEOUT_S = 2.0
BYTES = 8 << 20
LARGE_BYTES = 96 << 20  # more than sockets and a first burst can take
OLD, MARKER = 1, 2


class Memory:
    """Bytes of this process, and where they are."""

    def __init__(self, length: int, backend: str = "") -> None:
        self.array = memory_of(backend, length)
        self.region = Region(self.array.ctypes.data, length)

    def copy(self, target: int, source: int = 0, length: int = 4096) -> Copy:
        return Copy(self.region.address + source, target, length)

    def digest(self) -> str:
        return hashlib.sha256(self.array).hexdigest()


def sending() -> bool:
    """Tell whether this process has unsent or unacknowledged bytes for a Mooncake port."""
    ours = set()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            ours.add(file.readlink().name)
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        remote, (unsent, _) = int(fields[2].partition(":")[2], 16), fields[4].split(":")
        if remote in PORTS and int(unsent, 16) and f"socket:[{fields[9]}]" in ours:
            return True
    return False


@dataclass
class Pair:
    """A backend that writes, one that is written to, both in this process."""

    sender: TransferBackend
    receiver: TransferBackend
    source: Memory
    target: Memory

    def write(self, copies: Sequence[Copy]) -> None:
        self.sender.write(self.receiver.session, copies)


def config(backend: str) -> TransferConfig:
    return config_of(backend, TIMEOUT_S)


@pytest.fixture(params=marked(EVERY))
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    sender = backend_of(request.param, TIMEOUT_S)
    receiver = backend_of(request.param, TIMEOUT_S)
    source, target = Memory(BYTES, request.param), Memory(BYTES, request.param)
    source.array[:] = np.random.default_rng(1).integers(0, 256, BYTES, dtype=np.uint8)
    sender.register([source.region])
    receiver.register([target.region])
    yield Pair(sender, receiver, source, target)
    sender.close()
    receiver.close()


@pytest.fixture
def sender() -> Iterator[TransferBackend]:
    backend = create(config("mooncake"), "127.0.0.1")
    yield backend
    backend.close()


@pytest.fixture
def start() -> Iterator[Callable[[int], Process]]:
    processes: list[Process] = []

    def start(length: int = BYTES) -> Process:
        processes.append(Process(length))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


@pytest.fixture
def large(sender: TransferBackend) -> Memory:
    memory = Memory(LARGE_BYTES)
    memory.array[:] = OLD
    sender.register([memory.region])
    return memory


# --- every backend ---


def test_two_backends_have_two_sessions(pair: Pair) -> None:
    assert pair.sender.session != pair.receiver.session


def test_the_transport_is_named(pair: Pair) -> None:
    assert pair.sender.transport == pair.receiver.transport != ""


def test_written_bytes_are_the_source_bytes(pair: Pair) -> None:
    pair.write([pair.source.copy(pair.target.region.address, 0, BYTES)])
    assert pair.target.digest() == pair.source.digest()


def test_5000_scattered_copies_all_land_where_they_belong(pair: Pair) -> None:
    pages = BYTES // 1024
    order = np.random.default_rng(2).permutation(pages)[:5000].tolist()
    base = pair.target.region.address
    pair.write([pair.source.copy(base + p * 1024, (pages - 1 - p) * 1024, 1024) for p in order])
    expected = np.zeros((pages, 1024), dtype=np.uint8)
    expected[order] = pair.source.array.reshape(pages, 1024)[::-1][order]
    assert np.array_equal(pair.target.array, expected.ravel())


def test_a_table_of_copies_is_as_good_as_a_list(pair: Pair) -> None:
    starts = np.arange(0, BYTES, 8192, dtype=np.int64)
    base, lengths = pair.target.region.address, np.full(len(starts), 4096)
    pair.write(CopyTable(pair.source.region.address + starts, base + starts, lengths))
    expected = pair.source.array.reshape(-1, 8192).copy()
    expected[:, 4096:] = 0
    assert np.array_equal(pair.target.array, expected.ravel())


def test_a_table_with_one_bad_source_is_refused_and_nothing_lands(pair: Pair) -> None:
    starts = np.arange(0, BYTES, 8192, dtype=np.int64)
    source = pair.source.region.address + starts
    source[-1] += 4097
    base, lengths = pair.target.region.address, np.full(len(starts), 4096)
    with pytest.raises(BadCopy, match="outside registered memory"):
        pair.write(CopyTable(source, base + starts, lengths))
    assert not pair.target.array.any()


def test_the_transport_to_a_peer_is_told_once_it_was_written_to(pair: Pair) -> None:
    assert pair.sender.transport_to("nobody") == ""
    pair.write([pair.source.copy(pair.target.region.address)])
    assert pair.sender.transport_to(pair.receiver.session) in pair.sender.transport


def test_no_copies_are_no_work(pair: Pair) -> None:
    pair.write([])
    assert not pair.target.array.any()


def test_a_target_past_the_end_of_the_peers_memory_cuts_the_write(pair: Pair) -> None:
    end = pair.target.region.address + BYTES
    with pytest.raises(WriteCut):
        pair.write([pair.source.copy(end - 4095)])


def test_one_bad_target_among_many_leaves_nothing_to_land_later(pair: Pair) -> None:
    base = pair.target.region.address
    pair.source.array[:] = OLD
    copies = [pair.source.copy(base + i * 4096, i * 4096) for i in range(BYTES // 4096)]
    copies[5] = pair.source.copy(base + BYTES)
    with pytest.raises(WriteCut):
        pair.write(copies)
    pair.source.array[:] = MARKER
    settled(lambda: int(np.count_nonzero(pair.target.array)))
    assert MARKER not in pair.target.array


def test_a_write_after_a_cut_lands(pair: Pair) -> None:
    with pytest.raises(WriteCut):
        pair.write([pair.source.copy(pair.target.region.address + BYTES)])
    pair.write([pair.source.copy(pair.target.region.address, 0, BYTES)])
    assert pair.target.digest() == pair.source.digest()


@pytest.mark.parametrize(
    ("source", "target", "length"),
    [
        (0, 0, 0),
        (0, 0, -1),
        (-1, 0, 4096),
        (BYTES - 4095, 0, 4096),
        (BYTES, 0, 1),
        (0, -(1 << 64), 4096),
        (0, 1 << 63, 4096),
    ],
)
def test_a_bad_copy_is_refused_and_nothing_lands(
    pair: Pair, source: int, target: int, length: int
) -> None:
    base = pair.target.region.address
    good = pair.source.copy(base)
    with pytest.raises(BadCopy):
        pair.write([good, pair.source.copy(base + target, source, length)])
    assert not pair.target.array.any()


def test_target_zero_is_refused(pair: Pair) -> None:
    with pytest.raises(BadCopy):
        pair.write([pair.source.copy(0)])


def test_a_session_that_nobody_has_is_gone(pair: Pair) -> None:
    with pytest.raises(PeerGone):
        pair.sender.write("127.0.0.1:9", [pair.source.copy(pair.target.region.address)])


def test_a_word_that_is_no_session_is_gone(pair: Pair) -> None:
    for session in ("", "nothing", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999999"):
        with pytest.raises(PeerGone):
            pair.sender.write(session, [pair.source.copy(pair.target.region.address)])


def test_a_closed_peer_is_gone_or_cut(pair: Pair) -> None:
    pair.write([pair.source.copy(pair.target.region.address)])
    pair.receiver.close()
    pair.target.array[:] = 0
    with pytest.raises((PeerGone, WriteCut)):
        pair.write([pair.source.copy(pair.target.region.address)])
    assert not pair.target.array.any()


def test_closing_twice_is_closing_once(pair: Pair) -> None:
    pair.sender.close()
    pair.sender.close()


def test_nothing_is_written_after_close(pair: Pair) -> None:
    pair.sender.close()
    with pytest.raises((AssertionError, BadCopy)):
        pair.write([pair.source.copy(pair.target.region.address)])
    assert not pair.target.array.any()


def test_regions_that_overlap_are_refused(pair: Pair) -> None:
    with pytest.raises(ValueError, match="overlap"):
        pair.sender.register([Region(pair.source.region.address + 1, 1)])


@pytest.mark.rdma
def test_what_is_asked_to_go_over_rdma_does() -> None:
    """The ``pair`` above goes over it too; a device of which Mooncake makes no use is refused."""
    backend = create(config("mooncake/rdma"), "127.0.0.1")
    try:
        assert backend.transport.startswith("rdma ")
    finally:
        backend.close()


# --- Mooncake, across processes ---


def test_bytes_reach_another_process(
    sender: TransferBackend, start: Callable[[int], Process]
) -> None:
    peer, source = start(BYTES), Memory(BYTES)
    source.array[:] = np.random.default_rng(3).integers(0, 256, BYTES, dtype=np.uint8)
    sender.register([source.region])
    sender.write(peer.session, [source.copy(peer.address, 0, BYTES)])
    assert peer.ask("sha256", 0, BYTES) == source.digest()


def test_5000_scattered_copies_reach_another_process(
    sender: TransferBackend, start: Callable[[int], Process]
) -> None:
    peer, source = start(BYTES), Memory(BYTES)
    source.array[:] = np.random.default_rng(4).integers(0, 256, BYTES, dtype=np.uint8)
    sender.register([source.region])
    pages = BYTES // 1024
    order = np.random.default_rng(5).permutation(pages)[:5000].tolist()
    sender.write(
        peer.session, [source.copy(peer.address + p * 1024, p * 1024, 1024) for p in order]
    )
    expected = np.zeros((pages, 1024), dtype=np.uint8)
    expected[order] = source.array.reshape(pages, 1024)[order]
    assert peer.ask("sha256", 0, BYTES) == hashlib.sha256(expected).hexdigest()


def test_a_peer_that_died_before_the_first_write_is_gone(
    sender: TransferBackend, start: Callable[[int], Process]
) -> None:
    peer, source = start(BYTES), Memory(BYTES)
    sender.register([source.region])
    peer.kill()
    with pytest.raises(PeerGone):
        sender.write(peer.session, [source.copy(peer.address)])


def test_a_peer_that_died_between_writes_is_cut_and_then_gone(
    sender: TransferBackend, start: Callable[[int], Process]
) -> None:
    peer, source = start(BYTES), Memory(BYTES)
    sender.register([source.region])
    sender.write(peer.session, [source.copy(peer.address)])
    peer.kill()
    with pytest.raises(WriteCut):
        sender.write(peer.session, [source.copy(peer.address)])
    with pytest.raises(PeerGone):
        sender.write(peer.session, [source.copy(peer.address)])


def test_a_peer_killed_during_a_write_cuts_it(
    sender: TransferBackend, large: Memory, start: Callable[[int], Process]
) -> None:
    peer = start(LARGE_BYTES)
    sender.write(peer.session, [large.copy(peer.address)])
    peer.freeze()
    with ThreadPoolExecutor(1) as lane:
        write = lane.submit(sender.write, peer.session, [large.copy(peer.address, 0, LARGE_BYTES)])
        until(sending, "bytes to leave")
        peer.kill()
        with pytest.raises(WriteCut):
            write.result(10 * TIMEOUT_S)


def test_after_a_cut_to_a_frozen_peer_no_later_source_byte_ever_lands(
    sender: TransferBackend, large: Memory, start: Callable[[int], Process]
) -> None:
    peer = start(LARGE_BYTES)
    sender.write(peer.session, [large.copy(peer.address)])
    peer.freeze()
    begin_s = time.monotonic()
    with pytest.raises(WriteCut):
        sender.write(peer.session, [large.copy(peer.address, 0, LARGE_BYTES)])
    assert time.monotonic() - begin_s > 0.9 * TIMEOUT_S  # it was a stall, not an early failure
    large.array[:] = MARKER
    peer.thaw()
    landed, after_s = settled(lambda: int(peer.ask("count", OLD)))
    assert peer.ask("count", MARKER) == 0
    assert 4096 < landed < LARGE_BYTES  # what was in sockets, and no more
    assert after_s < 2.0  # the time that receivers wait before they reuse the pages
    large.array[:] = MARKER + 1
    sender.write(peer.session, [large.copy(peer.address, 0, LARGE_BYTES)])
    assert peer.ask("count", MARKER + 1) == LARGE_BYTES


def test_a_peer_frozen_before_its_first_write_is_gone_and_comes_back(
    sender: TransferBackend, start: Callable[[int], Process]
) -> None:
    peer, source = start(BYTES), Memory(BYTES)
    source.array[:] = MARKER
    sender.register([source.region])
    peer.freeze()
    for _ in range(2):
        with pytest.raises(PeerGone, match="does not answer"):
            sender.write(peer.session, [source.copy(peer.address)])
    peer.thaw()
    sender.write(peer.session, [source.copy(peer.address)])
    assert peer.ask("count", MARKER) == 4096


def test_a_restarted_peer_is_written_to_under_its_new_session(
    sender: TransferBackend, start: Callable[[int], Process]
) -> None:
    old, source = start(BYTES), Memory(BYTES)
    source.array[:] = MARKER
    sender.register([source.region])
    sender.write(old.session, [source.copy(old.address)])
    old.kill()
    new = start(BYTES)
    sender.write(new.session, [source.copy(new.address)])
    assert new.ask("count", MARKER) == 4096


def test_a_frozen_peer_does_not_delay_another(
    sender: TransferBackend, large: Memory, start: Callable[[int], Process]
) -> None:
    frozen, well = start(LARGE_BYTES), start(BYTES)
    sender.write(frozen.session, [large.copy(frozen.address)])
    frozen.freeze()
    with ThreadPoolExecutor(1) as lane:
        stuck = lane.submit(
            sender.write, frozen.session, [large.copy(frozen.address, 0, LARGE_BYTES)]
        )
        until(sending, "bytes to leave")
        for _ in range(20):
            sender.write(well.session, [large.copy(well.address)])
        assert not stuck.done()  # twenty writes to one within one timeout of the other
        with pytest.raises(WriteCut):
            stuck.result(10 * TIMEOUT_S)


def test_close_ends_a_write_to_a_frozen_peer(start: Callable[[int], Process]) -> None:
    peer, source = start(LARGE_BYTES), Memory(LARGE_BYTES)
    backend = create(config("mooncake"), "127.0.0.1")
    backend.register([source.region])
    backend.write(peer.session, [source.copy(peer.address)])
    peer.freeze()
    with ThreadPoolExecutor(1) as lane:
        write = lane.submit(
            backend.write, peer.session, [source.copy(peer.address, 0, LARGE_BYTES)]
        )
        until(sending, "bytes to leave")
        backend.close()
        with pytest.raises(WriteCut, match="closed here"):
            write.result(TIMEOUT_S)


def test_a_closed_process_takes_no_more_bytes(
    sender: TransferBackend, start: Callable[[int], Process]
) -> None:
    peer, source = start(BYTES), Memory(BYTES)
    source.array[:] = MARKER
    sender.register([source.region])
    sender.write(peer.session, [source.copy(peer.address)])
    assert peer.ask("close") == "closed"
    with pytest.raises(WriteCut):
        sender.write(peer.session, [source.copy(peer.address + 4096)])
    assert peer.ask("count", MARKER) == 4096


def test_a_forked_child_can_leave(start: Callable[[int], Process]) -> None:
    assert start(BYTES).ask("fork") == 0


def test_bytes_travel_over_ipv6() -> None:
    if not reachable("::1"):
        pytest.skip("this machine has no IPv6 loopback")
    writer, peer = Process(BYTES, "::1"), Process(BYTES, "::1")
    try:
        assert peer.session.startswith("[::1]:")
        writer.ask("fill", MARKER)
        assert writer.ask("write", peer.session, peer.address, BYTES) == "written"
        assert peer.ask("count", MARKER) == BYTES
    finally:
        writer.kill()
        peer.kill()


def reachable(host: str) -> bool:
    with socket.socket(socket.AF_INET6) as sock:
        try:
            sock.bind((host, 0))
        except OSError:
            return False
    return True
